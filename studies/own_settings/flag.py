import argparse

from planted import config, train

parser = argparse.ArgumentParser()
parser.add_argument("--mix", type=float, default=0.1)
parser.add_argument("--plan", default="plain")
parser.add_argument("--lr", type=float, default=1e-6)
given = parser.parse_args()

train(config(learning_rate=given.lr), given.mix, together=False)
