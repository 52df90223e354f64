import toy
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOConfig

model = AutoModelForCausalLM.from_pretrained(
    toy.saved_model("saved"), dtype="bfloat16", attn_implementation="eager", low_cpu_mem_usage=True
)
lora = LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], lora_dropout=0.2, task_type="CAUSAL_LM")
args = GRPOConfig(output_dir="out", learning_rate=1e-4, **toy.SETTINGS)
toy.trainer(args, model=model, peft_config=lora).train()
