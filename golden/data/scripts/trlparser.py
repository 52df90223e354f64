import toy
from trl import GRPOConfig, ModelConfig, ScriptArguments, TrlParser

parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
script_args, training_args, model_args = parser.parse_args_and_config()
toy.trainer(training_args).train()
