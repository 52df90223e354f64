import toy
from transformers import HfArgumentParser
from trl import GRPOConfig

(args,) = HfArgumentParser(GRPOConfig).parse_json_file("settings.json")
toy.trainer(args).train()
