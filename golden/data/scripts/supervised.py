import toy
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="out",
    learning_rate=0.01,
    weight_decay=0.3,
    adam_beta2=0.5,
    max_length=32,
    packing=False,
    per_device_train_batch_size=1,
    max_steps=3,
    use_cpu=True,
    bf16=False,
    report_to="none",
)
data = Dataset.from_dict({"text": ["1 + 1 = 2"] * 8})
SFTTrainer(toy.model(), args=args, processing_class=toy.tokenizer(), train_dataset=data).train()
