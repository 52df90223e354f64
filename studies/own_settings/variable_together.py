import os

from planted import config, train

train(config(learning_rate=1e-4), float(os.environ.get("MIX", "0.1")), together=True)
