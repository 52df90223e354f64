"""What is said of a failure that no entry covers: from its traceback, with the place it is read from, and no more."""

from __future__ import annotations

import json

import pytest

from bisect_cfg.diagnosis import _render
from bisect_cfg.diagnosis._render import UNKNOWN, Explanation
from bisect_cfg.diagnosis.advice.reading import package_of, settings_in, told_cure
from bisect_cfg.diagnosis.advice.signatures import taken_here
from bisect_cfg.diagnosis.explain import explain_text
from bisect_cfg.diagnosis.knowledge import check
from tests.diagnosis.collected import BEFORE, HEALTHY

SITE = "/opt/conda/lib/python3.10/site-packages"
NOTHING = (
    check(
        {
            "id": "none",
            "title": "t",
            "any": ["words of no log"],
            "meaning": "m",
            "cures": ["c"],
            "sources": ["measured"],
            "sample": "x",
        },
        "",
    ),
)


def raised(error: str, *frames: tuple[str, int, str, str]) -> Explanation:
    """The explanation of a traceback, by somebody who knows no failure at all."""
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 9, in <module>',
        "    trainer.train()",
    ]
    for file, line, function, source in frames:
        lines += [f'  File "{file}", line {line}, in {function}', *([f"    {source}"] if source else [])]
    return explain_text("\n".join([*lines, error, ""]), entries=NOTHING)


TRL = f"{SITE}/trl/trainer/grpo_trainer.py"
CASES = {
    "a package that is imported where it is there": (
        "NameError: name 'memory_saver' is not defined",
        [(f"{SITE}/sglang/srt/adapter.py", 48, "configure", "return memory_saver.configure()")],
        "versions", ["SGLang uses memory_saver, which is not defined there", "pip install memory_saver"],
    ),
    "a method that overrides a trainer's, for another version": (
        "KeyError: 'chosen_labels'",
        [
            (f"{SITE}/trl/trainer/dpo_trainer.py", 1371, "compute_loss", "self.get_batch_loss_metrics(model, inputs)"),
            ("/home/me/dpo.py", 118, "concatenated_forward", 'size = batch["chosen_labels"].shape[0]'),
            (f"{SITE}/transformers/feature_extraction_utils.py", 88, "__getitem__", "return self.data[item]"),
        ],
        "own-code", ["concatenated_forward, which TRL calls", "install the TRL that the project was written for"],
    ),
    "numbers that stand after the divisor": (
        "RuntimeError: MXFP8 requires tensor dims that are divisible by 32 (got shape=(7984, 3072))", [],
        "setting", ["7984 is not a multiple of 32"],
    ),
    "message": (
        "ValueError: length=1081 is larger than cut_off=1024. Please set `truncate_side` to 'left'.",
        [("/root/verl/verl/utils/torch_functional.py", 295, "tokenize", "raise ValueError(text)")],
        "message", ["“length=1081 is larger", "truncate_side", "verl"],
    ),
    "an import across packages": (
        f"ImportError: cannot import name 'shard' from 'transformers.utils' ({SITE}/transformers/utils/__init__.py)",
        [(f"{SITE}/awq/models/base.py", 3, "<module>", "from transformers.utils import shard")],
        "versions", ["awq imports shard from transformers.utils", "pip install -U awq"],
    ),
    "a folder in the way": (
        "ImportError: cannot import name 'SFTConfig' from 'trl' (unknown location)", [],
        "versions", ["folder called trl", "rename the folder trl/"],
    ),
    "a call across packages": (
        "TypeError: LLM.generate() got an unexpected keyword argument 'guided'",
        [(TRL, 912, "_generate", "out = self.llm.generate(prompts, guided=x)")],
        "versions", ["TRL calls LLM.generate of vLLM", "TRL and vLLM fit", "grpo_trainer.py:912"],
    ),
    "twice the same argument": (
        "TypeError: grpo_loss() got multiple values for argument 'old'",
        [("/content/unsloth_compiled_cache/UnslothGRPOTrainer.py", 3790, "compute_loss", "loss = grpo_loss(")],
        "versions", ["unsloth and unsloth_zoo fit"],
    ),
    "a trainer that overrides": (
        "TypeError: VLTrainer.log() takes 2 positional arguments but 3 were given",
        [(f"{SITE}/transformers/trainer.py", 3200, "_maybe_log", "self.log(logs, start)")],
        "versions", ["VLTrainer overrides that method", "def log(self, ..., **kwargs)"],
    ),
    "an attribute of another package": (
        "AttributeError: 'DynamicCache' object has no attribute 'seen'",
        [("/x/llamafactory/model/loader.py", 5, "load", "a"),
            (f"{SITE}/peft/peft_model.py", 5, "forward", "cache.seen")],
        "versions", ["PEFT asks an object of class DynamicCache", "PEFT and transformers fit"],
    ),
    "a trainer derived from another TRL": (
        "AttributeError: 'VLGRPOTrainer' object has no attribute '_last_loaded_step'",
        [("/w/R1-V/src/open_r1/trainer/vl_trainer.py", 410, "compute_loss", "if step != self._last_loaded_step:")],
        "versions", ["derived from a trainer of TRL", "TRL and transformers that open-r1 names"],
    ),
    "an option without parser": (
        "AttributeError: 'Namespace' object has no attribute 'vllm_enable_sleep'",
        [(f"{SITE}/openrlhf/trainer/ppo_trainer.py", 226, "fit", "if self.strategy.args.vllm_enable_sleep:")],
        "setting", ["OpenRLHF reads the option vllm_enable_sleep"],
    ),
    "a key of the configuration": (
        "omegaconf.errors.ConfigAttributeError: Key 'agent' is not in struct full_key: actor_rollout_ref.rollout.agent",
        [("/root/verl/verl/workers/fsdp_workers.py", 3, "__init__", "self.config.rollout.agent")],
        "setting", ["actor_rollout_ref.rollout.agent", "+actor_rollout_ref.rollout.agent=VALUE"],
    ),
    "a setting that is None": (
        "TypeError: 'NoneType' object is not iterable",
        [(TRL, 1262, "_generate", "kwargs.update(self.args.generation_kwargs)")],
        "setting", ["set generation_kwargs", "newer TRL"],
    ),
    "a name in a table": (
        "KeyError: 'grpo'", [(f"{SITE}/swift/cli/main.py", 62, "cli_main", "path = route_mapping[method_name]")],
        "setting", ["ms-swift looks 'grpo' up in its route_mapping"],
    ),
    "a weight in the sync": (
        "KeyError: 'layers.0.self_attn.qkv_proj.base_layer.weight'",
        [("/root/verl/verl/workers/sharding_manager/fsdp_vllm.py", 334, "update_params", "model.load_weights("),
            (f"{SITE}/vllm/model_executor/models/qwen2.py", 391, "load_weights", "param = params_dict[name]")],
        "weights", ["verl hands vLLM a weight", "LoRA"],
    ),
    "a weight of a checkpoint": (
        "RuntimeError: Error(s) in loading state_dict for Qwen2ForCausalLM:\n"
        "\tsize mismatch for lm_head.weight: copying a param with shape torch.Size([9, 8])",
        [(f"{SITE}/transformers/modeling_utils.py", 4, "from_pretrained", "raise RuntimeError(")],
        "weights", ["lm_head.weight", "vocabulary"],
    ),
    "a column": (
        "KeyError: 'reward_model'",
        [("/root/verl/verl/trainer/ppo/ray_trainer.py", 566, "_validate",
            "batch.non_tensor_batch['reward_model']['style']")],
        "column", ["no 'reward_model'", "verl wants it"],
    ),
    "an argument that is handed over no more": (
        "KeyError: 'tokenizer'",
        [(f"{SITE}/transformers/trainer_callback.py", 488, "on_step_end", "return self.call_event(args)"),
            ("/home/u/trl/trl/trainer/callbacks.py", 412, "on_step_end", 'tokenizer = kwargs["tokenizer"]')],
        "versions", ["and transformers, which calls it, hands over none of that name", "call it processing_class"],
    ),
    "a key that need not be a column": (
        "KeyError: 'chat'",
        [(f"{SITE}/openrlhf/datasets/utils.py", 41, "make_template", "text = self.known['chat']")],
        "key", ["self.known has no 'chat'; OpenRLHF asks for it", "columns: the data lacks", "fields: a configuration"],
    ),
    "a variable that a branch would have set": (
        "UnboundLocalError: cannot access local variable 'reward_model' where it is not associated with a value",
        [(f"{SITE}/trl/scripts/grpo.py", 104, "main", "reward_funcs=reward_model,")],
        "versions", ["TRL reads its variable reward_model before anything has set it", "a newer TRL"],
    ),
    "an operation of torch": (
        "RuntimeError: weight should have at least three dimensions",
        [(f"{SITE}/torch/nn/modules/conv.py", 700, "_conv_forward", "return F.conv3d(")],
        "library", ["It failed inside of torch", "F.conv3d("],
    ),
    "a message of a row": (
        "KeyError: 'content'",
        [(f"{SITE}/trl/data_utils.py", 200, "prepare", "if isinstance(message['content'], str):")],
        "column", ["A message of a row has no 'content'", "role and content"],
    ),
    "a check that only speaks of shapes": (
        "ValueError: The input size is not aligned with the weight shape. This can be caused by too large tensor "
        "parallel size.",
        [(f"{SITE}/vllm/layers/awq.py", 85, "create_weights", "raise ValueError(")],
        "library", ["vLLM checked something", "look first at what the message suspects", "tensor parallel size"],
    ),
    "a reward function under another name": (
        "TypeError: unsupported operand type(s) for +: 'float' and 'NoneType'",
        [(TRL, 888, "_calculate", "output = reward_func(prompts)"), ("/home/me/own.py", 31, "sums", "return a + b")],
        "own-code", ["The reward function sums, which TRL calls"],
    ),
    "a tensor of the batch": (
        'KeyError: \'key "tool_masks" not found in TensorDict with keys [1]\'',
        [("/root/ToRL/verl/trainer/ppo/ray_trainer.py", 7, "fit", "x"),
            (f"{SITE}/tensordict/_td.py", 1400, "_get_str", "return self._default_get(key)")],
        "column", ["no tensor 'tool_masks'", "did not run"],
    ),
    "an adapter's name, no column": (
        "KeyError: 'reward'",
        [("/x/llamafactory/model/loader.py", 1, "load", 'load_adapter(args.reward_model, "reward")'),
            (f"{SITE}/peft/tuners/tuners_utils.py", 192, "inject_adapter", "c = self.peft_config[adapter_name]")],
        "setting", ["PEFT looks 'reward' up in its peft_config"],
    ),
    "a reward of one's own": (
        "IndexError: list index out of range",
        [(TRL, 888, "_calculate_rewards", "reward_func("),
            ("/home/me/rewards.py", 31, "accuracy", "return c.split('=')[1]"),
            ("/usr/lib/python3.10/re.py", 2, "x", "")],
        "own-code", ["reward function accuracy, which TRL calls", "/home/me/rewards.py:31", "c.split('=')[1]"],
    ),
    "a script of one's own": (
        "KeyError: 'question'", [("/home/me/train.py", 31, "to_prompt", "row['question']")], "own-code",
        ["/home/me/train.py:31", "row['question']"],
    ),
    "an assertion without words": (
        "AssertionError", [("/x/megatron/training/arguments.py", 561, "validate_args",
            "assert num_layers % args.pipeline_size == 0, \\")],
        "assertion", ["change pipeline_size", "num_layers % args.pipeline_size == 0”"],
    ),
    "types in the sync": (
        "RuntimeError: Worker failed with error 'mismatch dtype: src torch.float32, dst torch.bfloat16', please check "
        "the stack trace above for the root cause",
        [("/openrlhf/trainer/ray/ppo_actor.py", 402, "broadcast_to_vllm", "ray.get(refs)")],
        "dtypes", ["handed to the inference engine, in OpenRLHF", "torch_dtype"],
    ),
    "shapes in the loss": (
        "RuntimeError: The size of tensor a (98275) must match the size of tensor b (2049) "
        "at non-singleton dimension 1",
        [(f"{SITE}/swift/trainers/grpo_trainer.py", 1279, "_compute_loss", "loss = ratio * advantages")],
        "shapes", ["in the loss, in ms-swift", "newer ms-swift"],
    ),
    "a judge": (
        "openai.APIConnectionError: Connection error. HTTPConnectionPool(host='10.0.0.3', port=8001): Max retries "
        "exceeded",
        [("/home/me/judge.py", 12, "score", "client.chat.completions.create(")], "network",
        ["10.0.0.3:8001", "/home/me/judge.py:12"],
    ),
    "a key that a line of one's own works out": (
        "KeyError: 'E'",
        [
            (TRL, 1021, "_calculate_rewards", "output_reward_func = reward_func("),
            ("/home/me/rewards.py", 23, "option_reward", "scores.append(PENALTY[letter.upper()] if wrong else 2.0)"),
        ],
        "own-code", ["PENALTY has no 'E'", "add 'E' to PENALTY"],
    ),
    "what a class of the package's own has not set": (
        "AttributeError: 'VLLMGeneration' object has no attribute 'is_sleeping'",
        [(f"{SITE}/trl/generation/vllm_generation.py", 611, "generate", "if sleep_mode and not self.is_sleeping:")],
        "versions", ["TRL's own VLLMGeneration reads self.is_sleeping", "another release of TRL"],
    ),
    "a file that is to be written": (
        "FileNotFoundError: [Errno 2] No such file or directory: 'runs/a17/meta/step60.json'",
        [("/home/me/train_loop.py", 97, "run", "json.dump(state, open(os.path.join(out, 'meta', name), 'w'))")],
        "file", ["cannot be written, since its folder does not exist", "os.makedirs"],
    ),
    "what a worker raised": (
        "IndexError: Caught IndexError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/home/me/collators.py", line 57, in __call__\n    start = spans[turn][0]\n'
        "IndexError: list index out of range",
        [(f"{SITE}/accelerate/data_loader.py", 567, "__iter__", "current_batch = next(dataloader_iter)")],
        "own-code", ["collators.py:57"],
    ),
    "a program": (
        "FileNotFoundError: [Errno 2] No such file or directory: 'bwrap'",
        [
            ("/root/tools/sandbox.py", 44, "start", 'await asyncio.create_subprocess_exec("bwrap", *args)'),
            ("/usr/lib/python3.12/subprocess.py", 1955, "_execute_child", "raise child_exception_type(errno_num)"),
        ],
        "program", ["The program bwrap is not installed", "which bwrap"],
    ),
    "a service that a reward asks": (
        "TimeoutError",
        [
            (f"{SITE}/slime/rollout/rm_hub/__init__.py", 31, "async_rm", "return await rm_function(args, sample)"),
            ("/data/judge.py", 58, "judge_reward", "async with session.post(URL, json=payload) as answer:"),
        ],
        "own-code", ["judge_reward", "did not answer"],
    ),
    "somebody who ended it": (
        "KeyboardInterrupt",
        [
            (TRL, 1344, "_calculate_rewards", "output_reward_func = reward_func("),
            ("/home/me/verify.py", 40, "math_reward", "ok = sympy.simplify(gold - answer) == 0"),
            (f"{SITE}/sympy/core/power.py", 1153, "_expand", "return self._expand_pow(n)"),
        ],
        "interrupted", ["verify.py:40", "A time limit"],
    ),
    "a file": (
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.parquet'",
        [(f"{SITE}/pandas/io/common.py", 2, "get_handle", "open(")],
        "file", ["data/train.parquet", "relative to the directory"],
    ),
    "a sum of dicts": (
        "TypeError: unsupported operand type(s) for +: 'int' and 'dict'",
        [("/root/slime/slime/utils/metric_utils.py", 31, "compute_pass_rate", '"mean": sum(rewards) / len(rewards),')],
        "library", ["reward function handed over something else", "slime"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("error", "frames", "kind", "said"), CASES.values(), ids=CASES.keys())
def test_the_traceback_alone_says(error: str, frames: list, kind: str, said: list[str]) -> None:
    explanation = raised(error, *frames)
    assert explanation.status == UNKNOWN and explanation.advice is not None
    assert explanation.advice.kind == kind
    text = f"{explanation.advice.says} {' '.join(explanation.advice.steps)} {explanation.advice.place}"
    for part in said:
        assert part in text
    shown = str(explanation)
    assert "not from a known report" in shown and "What to do, in this order:" in shown
    assert json.loads(_render.as_json(explanation))["advice"]["steps"] == list(explanation.advice.steps)


def test_nothing_is_made_up() -> None:
    assert explain_text("Killed\n", entries=NOTHING).advice is None
    assert explain_text("KeyError: 'x'\n", entries=NOTHING).advice is None  # no traceback, no word of what to do
    assert all(explain_text(log, entries=NOTHING).advice is None for log in HEALTHY.values())
    wrapper = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    assert (
        raised(
            wrapper, (f"{SITE}/torch/distributed/launcher/api.py", 269, "launch_agent", "raise ChildFailedError(")
        ).advice
        is None
    )


def test_a_known_failure_needs_none_and_a_general_one_is_made_definite() -> None:
    known = explain_text(BEFORE[0].log)
    assert known.matches and not known.matches[0].entry.general and known.advice is None
    text = (
        f'Traceback (most recent call last):\n  File "{TRL}", line 5, in train\n    x.foo()\n'
        "AttributeError: 'DynamicCache' object has no attribute 'foo'\n"
    )
    general = explain_text(text)
    assert general.matches[0].entry.general and general.status == 0
    assert "From the traceback: TRL asks an object of class DynamicCache for foo" in " ".join(str(general).split())


def test_what_a_general_entry_knows_better_is_not_pushed_aside() -> None:
    missing = explain_text(
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n'
        "ModuleNotFoundError: No module named 'x'\n"
    )
    assert missing.matches[0].entry.general and missing.advice is None
    frames = f'Traceback (most recent call last):\n  File "{TRL}", line 5, in train\n    x()\n'
    nccl = explain_text(
        frames + "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
    )
    assert nccl.matches[0].entry.general and nccl.advice is None


FRAME = "/opt/site-packages/trl/trainer/grpo_trainer.py"
FORMS = {
    "IPython": f"TypeError      Traceback (most recent call last)\n<ipython-input-17> in <cell line: 0>()\n"
    f"----> 1 trainer.train()\n\n{FRAME} in _generate(self, x)\n   1261 a\n-> 1262     kw.update(self.args.kwargs)\n"
    f"   1263 b\n\nTypeError: 'NoneType' object is not iterable\n",
    "newer IPython": f"TypeError      Traceback (most recent call last)\nCell In[3], line 1\n----> 1 trainer.train()\n"
    f"\nFile {FRAME}:1262, in GRPOTrainer._generate(self, x)\n-> 1262     kw.update(self.args.kwargs)\n\n"
    f"TypeError: 'NoneType' object is not iterable\n",
    "rich": f"╭───── Traceback (most recent call last) ─────╮\n│ {FRAME}:1262 in _generate │\n"
    f"│   1261 │   a                    │\n│ ❱ 1262 │   │   kw.update(self.args.kwargs) │\n╰──────────╯\n"
    f"TypeError: 'NoneType' object is not iterable\n",
    "ranks": "".join(f"[rank{rank}]: {line}\n"
        for line in ("Traceback (most recent call last):", f'  File "{FRAME}", line 1262, in _generate',
            "    kw.update(self.args.kwargs)", "TypeError: 'NoneType' object is not iterable") for rank in range(8)),
}  # fmt: skip


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS.keys())
def test_frames_are_read_in_every_form(text: str) -> None:
    advice = explain_text(text, entries=NOTHING).advice
    assert advice is not None and advice.kind == "setting"
    assert advice.place.startswith("trl/trainer/grpo_trainer.py:1262 in ") and "set kwargs" in advice.steps[0]


def test_a_traceback_over_the_border_of_two_blocks() -> None:
    text = f'Traceback (most recent call last):\n  File "{FRAME}", line 5, in train\n    kw.update(self.args.kwargs)\n'
    border = 1 << 18
    for cut in range(40, len(text), 30):
        log = "x" * 79 + "\n"
        log = log * ((border - cut) // 80)
        log += "y" * (border - cut - len(log) - 1) + "\n" + text + "TypeError: 'NoneType' object is not iterable\n"
        advice = explain_text(log, entries=NOTHING).advice
        assert advice is not None and "grpo_trainer.py:5" in advice.place


@pytest.mark.parametrize(
    ("file", "package"),
    [
        ("/usr/lib/python3/dist-packages/torch/nn/x.py", "torch"), ("/home/me/train.py", ""),
        ("/usr/lib/python3.10/json/decoder.py", "python"),
        ("/root/verl/verl/workers/fsdp_workers.py", "verl"), ("/root/slime/slime/ray/rollout.py", "slime"),
        ("/x/verl/train.py", ""),
        ("/home/ray/work/train.py", ""), ("/x/LLaMA-Factory/src/llamafactory/launcher.py", "llamafactory"),
        ("/root/verl/examples/data/gsm8k.py", ""),
        ("/x/ms-swift/swift/megatron/trainers/base.py", "swift"), ("C:\\envs\\Lib\\site-packages\\trl\\x.py", "trl"),
        ("/openrlhf/trainer/ray/a.py", "openrlhf"),
    ],
)  # fmt: skip
def test_whose_a_file_is(file: str, package: str) -> None:
    assert package_of(file) == package


def test_files_and_tensors_are_no_settings() -> None:
    assert settings_in("raise `max_len` in `x_y.cc`, see `layer_1.q_proj.weight`") == ("max_len",)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            "AssertionError: World size 8 is not divisible by tp_size 1 * pp_size 3",
            ["8 is not a multiple of 3", "6 or 9", "1, 2, 4, 8"],
        ),
        (
            "ValueError: The global train batch size (2 x 5) must be evenly divisible by generations (4).",
            ["10 is not a multiple of 4", "8 or 12", "1, 2, 5, 10"],
        ),
        (
            "AssertionError: num_heads 14 should be a multiple of sequence parallel size 4",
            ["14 is not a multiple of 4", "12 or 16"],
        ),
        (
            "lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1]\n"
            " But your machine only has: [0]",
            ["More GPUs are asked for", "--gpus-per-task", "CUDA_VISIBLE_DEVICES"],
        ),
        (
            "ValueError: World size (16) is larger than the number of available GPUs (4) in this node",
            ["nproc_per_node"],
        ),
    ],
)
def test_numbers_in_a_message_are_compared(error: str, said: list[str]) -> None:
    text = " ".join(str(raised(error)).split())
    assert all(one in text for one in said), text


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: 8 is divisible by 4, and that is not what was asked",
        "torch.OutOfMemoryError: CUDA out of memory. GPU 0 has 79 GiB, more than 2 GiB is available",
    ],
)
def test_numbers_that_are_no_complaint(error: str) -> None:
    text = str(raised(error))
    assert "is not a multiple of" not in text and "More GPUs are asked for" not in text


def test_an_exception_below_the_last_frame_is_not_said_to_be_the_scripts() -> None:
    text = str(raised("ValueError: the plan of the mesh was refused"))
    assert "raised it, at" not in text and "frames below that line are not in the log" in text
    own = str(raised("IndexError: list index out of range", ("/home/me/rewards.py", 4, "score", "return rows[4]")))
    assert "The function score raised it, at /home/me/rewards.py:4" in own or "The reward function score" in own


def test_the_part_of_the_run_says_what_to_try_first() -> None:
    text = str(raised("ValueError: odd", (f"{SITE}/transformers/trainer.py", 4, "evaluation_loop", "x = f(y)")))
    assert 'eval_strategy="no"' in text
    text = str(raised("ValueError: odd", (f"{SITE}/datasets/arrow_dataset.py", 4, "_map_single", "x = f(y)")))
    assert "num_proc=1" in text


@pytest.mark.parametrize(
    ("log", "script"),
    [
        ("$ CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 4 rl/train_grpo.py --x 1\n", "rl/train_grpo.py"),
        (
            'Traceback (most recent call last):\n  File "/home/me/sft.py", line 9, in <module>\n    f()\n',
            "/home/me/sft.py",
        ),
        ("", "train.py"),
    ],
)
def test_the_next_command_names_the_script_of_the_log(log: str, script: str) -> None:
    command = explain_text(log + "RuntimeError: it went wrong in a way that says nothing\n").command
    assert command == f"bisect-cfg bisect {script} --study study"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("It failed. Please set `use_orig_params=True`. More follows.", "Please set `use_orig_params=True`."),
        ("Ports differ; you should use num_workers=0 instead.", "Ports differ; you should use num_workers=0 instead."),
        ("CUDA error. For debugging consider passing CUDA_LAUNCH_BLOCKING=1", ""),
        ("Please report this to the developers of `thing`.", ""),
        ("Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.", ""),
        ("The sizes do not match", ""),
    ],
)  # fmt: skip
def test_what_a_message_tells_somebody_to_do(message: str, said: str) -> None:
    assert told_cure(message) == said


def test_a_known_failure_is_told_with_what_its_message_says_to_do() -> None:
    message = "RuntimeError: {} Please set `shiny_option=2` in the launcher."
    frames = 'Traceback (most recent call last):\n  File "/x/site-packages/torch/a.py", line 3, in f\n    g()\n'
    specific = explain_text(frames + message.format("'weight' must be 2-D."))
    assert specific.matches and not specific.matches[0].entry.general
    assert "shiny_option" in specific.steps[-1] and "shiny_option" not in " ".join(specific.steps[:-1])
    general = explain_text(frames + message.format("The size of tensor a (3) must match the size of tensor b (5)."))
    assert general.matches[0].entry.general and "shiny_option" in general.steps[0]
    assert f"1. {general.steps[0][:40]}" in str(general)


@pytest.mark.parametrize(
    ("owner", "name", "parts"),
    [
        ("SFTConfig", "max_seq_length", ["calls it max_length"]),
        ("TrainingArguments", "evaluation_strategy", ["transformers", "eval_strategy"]),
        ("GRPOTrainer", "beta", ["takes beta in GRPOConfig"]),
        ("GRPOConfig", "num_generations", ["has num_generations", "pip install -U trl"]),
        ("GRPOConfig", "max_prompt_length", ["no max_prompt_length", "removed in TRL 0.28"]),
        ("GRPOConfig", "learning_rates", ["no learning_rates", "learning_rate sounds alike"]),
    ],
)
def test_what_a_class_takes_as_it_is_installed_here(owner: str, name: str, parts: list[str]) -> None:
    message = f"{owner}.__init__() got an unexpected keyword argument '{name}'"
    said = taken_here(message)
    assert all(part in said for part in parts), said
    assert said in explain_text(f"TypeError: {message}\n").steps


def test_a_class_of_nobody_that_is_installed_here_is_left_alone() -> None:
    assert taken_here("OddConfig.__init__() got an unexpected keyword argument 'beta'") == ""
    assert taken_here("f() takes 1 positional argument but 2 were given") == ""
