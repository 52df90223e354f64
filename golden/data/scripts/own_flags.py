import argparse

import toy
from trl import GRPOConfig

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-6)
parser.add_argument("--temp", type=float, default=1.0)
parser.add_argument("--decay", type=float, default=0.0)
parser.add_argument("--data-rows", type=int, default=64)
given = parser.parse_args()
args = GRPOConfig(
    output_dir="out",
    learning_rate=given.lr,
    temperature=given.temp,
    weight_decay=given.decay,
    **toy.SETTINGS,
)
toy.trainer(args, train_dataset=toy.data(given.data_rows)).train()
