import toy
from trl import GRPOConfig

args = GRPOConfig(output_dir="out", model_init_kwargs={"dtype": "float32"}, reward_weights=[1.0], **toy.SETTINGS)
args.learning_rate = 0.01
args.temperature = 0.7
args.model_init_kwargs["attn_implementation"] = "eager"
args.reward_weights[0] = 2.0
toy.trainer(args, model=toy.saved_model("saved")).train()
