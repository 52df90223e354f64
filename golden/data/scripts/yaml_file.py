import pathlib

import toy
import yaml
from trl import GRPOConfig

recipe = yaml.safe_load(pathlib.Path(__file__).with_name("recipe.yaml").read_text())
args = GRPOConfig(**recipe["training"], **toy.SETTINGS)
toy.trainer(args, train_dataset=toy.data(recipe["rows"])).train()
