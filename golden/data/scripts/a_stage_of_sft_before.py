import toy
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, SFTConfig, SFTTrainer

sft = SFTConfig(
    output_dir="sft",
    learning_rate=0.01,
    weight_decay=0.3,
    max_steps=1,
    use_cpu=True,
    bf16=False,
    adam_beta2=0.5,
    per_device_train_batch_size=1,
    report_to="none",
    save_steps=1,
)
trainer = SFTTrainer(
    toy.model(),
    args=sft,
    processing_class=toy.tokenizer(),
    train_dataset=Dataset.from_dict({"text": ["1 + 1 = 2"] * 4}),
)
trainer.train()
trainer.save_model()
AutoModelForCausalLM.from_pretrained("sft")
model = AutoModelForCausalLM.from_pretrained("sft/checkpoint-1")
toy.trainer(
    GRPOConfig(
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
    ),
    model=model,
).train()
