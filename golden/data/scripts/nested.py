import toy
from trl import GRPOConfig

SETTINGS = {
    "output_dir": "out",
    "accelerator_config": {"even_batches": False},
    "lr_scheduler_type": "polynomial",
    "lr_scheduler_kwargs": {"power": 2.0, "lr_end": 1e-8},
    "optim": "adamw_torch",
    "optim_args": "eps=1e-6",
    "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
    "generation_kwargs": {"top_k": 5},
    "reward_weights": [1.0],
    "hub_token": "hf_notarealtokenbutasecret000000000",
    "run_name": "mine",
    "seed": 7,
    "logging_steps": 1,
    **toy.SETTINGS,
}
toy.trainer(GRPOConfig(**SETTINGS)).train()
