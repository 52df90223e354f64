import toy
from transformers import HfArgumentParser
from trl import GRPOConfig

(args,) = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses()
toy.trainer(args).train()
