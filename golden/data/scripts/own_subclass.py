from dataclasses import dataclass

import toy
from trl import GRPOConfig


@dataclass
class MyConfig(GRPOConfig):
    learning_rate: float = 3e-4
    weight_decay: float = 0.1

    def __post_init__(self):
        self.temperature = 0.9
        super().__post_init__()


toy.trainer(
    MyConfig(
        output_dir="out",
        warmup_steps=0.1,
        scale_rewards="none",
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
).train()
