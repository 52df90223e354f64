import toy
from trl import GRPOConfig, ModelConfig, ScriptArguments, TrlParser

parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
script_args, training_args, model_args = parser.parse_args_and_config(fail_with_unknown_args=False)
training_args.model_init_kwargs = dict(
    revision=model_args.model_revision,
    trust_remote_code=training_args.trust_remote_code,
    attn_implementation=model_args.attn_implementation,
    dtype=model_args.dtype,
)
toy.trainer(training_args, model=toy.saved_model("model")).train()
