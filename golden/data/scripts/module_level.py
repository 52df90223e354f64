import toy
from trl import GRPOConfig

args = GRPOConfig(
    output_dir="out",
    learning_rate=0.0003,
    weight_decay=0.1,
    warmup_steps=0.1,
    temperature=0.9,
    scale_rewards="none",
    per_device_train_batch_size=4,
    num_generations=4,
    max_completion_length=8,
    use_cpu=True,
    bf16=False,
    report_to="none",
)
toy.trainer(args).train()
