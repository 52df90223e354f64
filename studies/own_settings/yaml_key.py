import os

import yaml
from planted import config, train

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "own.yaml")) as stream:
    own = yaml.safe_load(stream)

train(config(**own["training"]), own["data"]["mix"], together=False)
