import toy
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, ModelConfig, ScriptArguments, TrlParser, get_peft_config

script, args, config = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
model = AutoModelForCausalLM.from_pretrained(toy.saved_model("saved"), dtype=config.dtype)
toy.trainer(args, model=model, peft_config=get_peft_config(config)).train()
