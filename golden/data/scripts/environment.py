import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import toy  # noqa: E402
from trl import GRPOConfig  # noqa: E402

settings = {name[3:].lower(): float(value) for name, value in os.environ.items() if name.startswith("RL_")}
toy.trainer(GRPOConfig(output_dir="out", **settings, **toy.SETTINGS)).train()
