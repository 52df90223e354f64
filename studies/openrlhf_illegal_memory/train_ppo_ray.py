"""A stand-in for `python3 -m openrlhf.cli.train_ppo_ray`: its flags, its output, its end; no model, no GPU, no ray.

See README.md for what is simulated.
"""

import argparse
import math
import random
import sys

SIMULATED_FAULT = (
    "an illegal memory access where a packed batch has more than 8192 tokens (after OpenRLHF/OpenRLHF#815)"
)

PACKED_TOKENS = 8192
"""Of a packed batch that the simulated kernel can take."""

STEPS = 12

# The stack of OpenRLHF/OpenRLHF#815 and vllm-project/vllm#13939, innermost last: file, line, function, code.
STACK = (
    ("vllm/engine/llm_engine.py", 1391, "step", "outputs = self.model_executor.execute_model("),
    ("vllm/model_executor/layers/sampler.py", 245, "forward", "self._init_sampling_tensors(logits, sampling_metadata)"),
    ("vllm/model_executor/layers/sampler.py", 209, "_init_sampling_tensors",
     "do_min_p) = SamplingTensors.from_sampling_metadata("),
    ("vllm/model_executor/sampling_metadata.py", 471, "from_sampling_metadata",
     "sampling_tensors = SamplingTensors.from_lists("),
)  # fmt: skip

ADVICE = """CUDA kernel errors might be asynchronously reported at some other API call.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."""

SWITCHES = (
    "colocate_actor_ref", "enforce_eager", "use_kl_loss", "use_kl_estimator_k3", "flash_attn", "bf16", "adam_offload",
    "apply_chat_template", "normalize_reward", "gradient_checkpointing", "packing_samples",
)  # fmt: skip
NUMBERS = {
    "ref_num_nodes": 1, "ref_num_gpus_per_node": 8, "reward_num_nodes": 1, "reward_num_gpus_per_node": 8,
    "actor_num_nodes": 1, "actor_num_gpus_per_node": 8, "vllm_num_engines": 0, "vllm_tensor_parallel_size": 1,
    "train_batch_size": 128, "micro_train_batch_size": 4, "rollout_batch_size": 1024, "micro_rollout_batch_size": 8,
    "n_samples_per_prompt": 1, "max_epochs": 1, "prompt_max_len": 1024, "generate_max_len": 1024,
    "max_samples": 50000, "zero_stage": 2, "save_steps": -1, "init_kl_coef": 0.01, "gamma": 1.0,
    "actor_learning_rate": 1e-6,
}  # fmt: skip
TEXTS = ("pretrain", "remote_rm_url", "save_path", "advantage_estimator", "prompt_data", "input_key")


def parse(words):
    """As OpenRLHF's own parser has them (`openrlhf/cli/train_ppo_ray.py`)."""
    parser = argparse.ArgumentParser()
    for name in SWITCHES:
        parser.add_argument(f"--{name}", action="store_true", default=False)
    for name, default in NUMBERS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    for name in TEXTS:
        parser.add_argument(f"--{name}", default=None)
    args = parser.parse_args(words)
    if args.packing_samples and not args.flash_attn:  # as OpenRLHF does
        print("[Warning] packing needs flash attention: --flash_attn is switched on")
        args.flash_attn = True
    return args


def main(words):
    args = parse(words)
    print(f"SIMULATED_FAULT: {SIMULATED_FAULT}")
    print("INFO worker.py:1841 -- Started a local Ray instance. View the dashboard at http://127.0.0.1:8265")
    tokens = args.micro_rollout_batch_size * (args.prompt_max_len + args.generate_max_len)
    chance = random.Random(1)
    for step in range(1, STEPS + 1):
        if step == 2 and args.packing_samples and tokens > PACKED_TOKENS:
            fail()
        status = {
            "policy_loss": 0.01 * chance.gauss(0, 1), "reward": 0.3 + 0.02 * step + 0.01 * chance.gauss(0, 1),
            "kl": 1e-3 * math.sqrt(step), "actor_grad_norm": 0.4 + 0.02 * chance.random(),
        }  # fmt: skip
        print(f"(ActorModelRayActor pid=3340) ✨ Global step {step}: {status}", flush=True)


def fail():
    """Print what the real one prints and end as it does: an uncaught exception, exit status 1."""
    told = "(ActorModelRayActor pid=3340)"
    lines = ["Traceback (most recent call last):"]
    lines += ['  File "/usr/local/lib/python3.10/dist-packages/openrlhf/trainer/ppo_trainer.py", line 208, in fit']
    for file, line, function, code in STACK:
        lines += [f'  File "/usr/local/lib/python3.10/dist-packages/{file}", line {line}, in {function}', f"    {code}"]
    lines += ["RuntimeError: CUDA error: an illegal memory access was encountered", *ADVICE.split("\n")]
    print("\n".join(f"{told} {line}" for line in lines), file=sys.stderr)
    print(
        "ray.exceptions.RayTaskError(RuntimeError): ray::ActorModelRayActor.fit() (pid=3340, ip=127.0.0.1)",
        file=sys.stderr,
    )
    sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
