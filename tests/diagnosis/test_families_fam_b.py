# ruff: noqa: E501  (a line of a log is one line)
"""One message, several causes: data, checkpoints, quantization, trainers and engines, each told by what decides."""

from __future__ import annotations

import pytest

from bisect_cfg.diagnosis.explain import explain_text

SITE = "/opt/env/lib/python3.11/site-packages"
TRAIN = f"{SITE}/transformers/trainer.py train"
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
OLD_DRIVER = "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).\n"


def tb(*frames: str, error: str) -> str:
    """A traceback. A frame is a path, a function, and after a bar the line of code."""
    lines = []
    for frame in frames:
        place, _, code = frame.partition(" | ")
        path, function = place.rsplit(" ", 1)
        lines.append(f'  File "{path}", line 17, in {function}\n    {code or "call()"}\n')
    return f"Traceback (most recent call last):\n{''.join(lines)}{error}\n"


GENERATION = CAUSED + tb(
    "/home/me/p.py <module> | ds = load_dataset('csv', data_files='d.csv')",
    f"{SITE}/datasets/builder.py _prepare_split_single",
    error="datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
)
MULTINOMIAL = tb(
    "/home/me/grpo.py <module> | trainer.train()",
    TRAIN,
    f"{SITE}/trl/trainer/grpo_trainer.py _generate_and_score_completions",
    f"{SITE}/transformers/generation/utils.py _sample | next_tokens = torch.multinomial(probs, num_samples=1)",
    error="RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
)
NO_CUDA = tb(
    f"{SITE}/transformers/integrations/bitsandbytes.py _validate_bnb_cuda_backend_availability",
    error="RuntimeError: CUDA is required but not available for bitsandbytes. Please consider installing the multi-platform enabled version",
)
APPLY_QKV = tb(
    "/home/me/u.py <module> | trainer.train()",
    f"{SITE}/unsloth/models/llama.py LlamaAttention_fast_forward",
    error="AttributeError: 'Qwen2Attention' object has no attribute 'apply_qkv'",
)


@pytest.mark.parametrize(
    ("log", "entry", "title"),
    [
        pytest.param(
            tb(
                TRAIN,
                f"{SITE}/transformers/trainer.py _load_from_checkpoint"
                ' | raise ValueError(f"Can\'t find a valid checkpoint at {resume_from_checkpoint}")',
                error="ValueError: Can't find a valid checkpoint at out/checkpoint-500",
            ),
            "checkpoint-mismatch",
            "The folder to resume from is not there",
            id="the Trainer finds no weights in the folder",
        ),
        pytest.param(
            tb(
                f"{SITE}/transformers/integrations/deepspeed.py deepspeed_load_checkpoint"
                ' | raise ValueError(f"Can\'t find a valid checkpoint at {checkpoint_path}")',
                error="ValueError: Can't find a valid checkpoint at out/checkpoint-500",
            ),
            "checkpoint-mismatch",
            "DeepSpeed finds no checkpoint of its own",
            id="DeepSpeed finds no global_step",
        ),
        pytest.param(
            "ValueError: Can't find a valid checkpoint at out/checkpoint-500\n",
            "checkpoint-mismatch",
            "That folder has nothing to resume from",
            id="the message alone does not tell who looked",
        ),
        pytest.param(
            tb(
                "/home/me/eval.py <module>",
                f"{SITE}/transformers/modeling_utils.py _load_pretrained_model",
                error="RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([0]) from checkpoint, the shape in current model is torch.Size([128256, 4096]).",
            ),
            "zero3-empty-weights-sent",
            "The checkpoint holds empty weights",
            id="shards of size 0 are no other vocabulary",
        ),
        pytest.param(
            "  0%|          | 0/500 [00:00<?, ?it/s]\n" + MULTINOMIAL,
            "sampling-non-finite-weights",
            "Sampling met NaN or infinite probabilities, it seems before a step was done",
            id="no step has changed the weights yet",
        ),
        pytest.param(
            " 20%|##        | 40/200 [10:11<1:14:02, 25.2s/it]\n" + MULTINOMIAL,
            "sampling-non-finite-weights",
            "Sampling met NaN, infinite or negative probabilities (in training mostly since",
            id="steps were done",
        ),
        pytest.param(
            tb(
                f"{SITE}/datasets/packaged_modules/csv/csv.py _generate_tables",
                error="UnicodeDecodeError: 'utf-8' codec can't decode byte 0xb3 in position 11: invalid start byte",
            )
            + GENERATION,
            "text-encoding",
            "A file of the data set is not in UTF-8",
            id="what datasets wraps is the cause",
        ),
        pytest.param(
            tb(
                "/home/me/p.py <module>",
                f"{SITE}/datasets/features/features.py generate_from_dict",
                error="ValueError: Feature type 'List' not found. Available feature types: ['Value', 'ClassLabel', 'Sequence']",
            ),
            "datasets-list-feature",
            "The data set was written by datasets 4",
            id="datasets, and not pyarrow",
        ),
        pytest.param(
            tb(
                TRAIN,
                f"{SITE}/transformers/tokenization_utils_base.py convert_to_tensors",
                error="ValueError: Unable to create tensor, you should probably activate truncation and/or padding with 'padding=True' 'truncation=True' to have batched tensors with the same length. Perhaps your features (`labels` in this case) have excessive nesting (inputs type `list` where type `int` is expected).",
            ),
            "wrong-columns-left",
            "The collator could make no tensor of the column labels",
            id="the message names the column",
        ),
        pytest.param(
            tb(
                TRAIN,
                f"{SITE}/transformers/tokenization_utils_base.py pad",
                error="ValueError: You should supply an encoding or a list of encodings to this method that includes input_ids, but you provided ['label']",
            ),
            "no-loss",
            "The rows that reach the collator have no input_ids",
            id="rows that were not tokenized",
        ),
        pytest.param(
            OLD_DRIVER + NO_CUDA,
            "quantization-without-cuda",
            "torch sees no GPU, since the driver is older",
            id="the driver before bitsandbytes",
        ),
        pytest.param(
            NO_CUDA,
            "quantization-without-cuda",
            "Quantized loading (bitsandbytes) is asked for, and no CUDA is found for it",
            id="bitsandbytes without a GPU, not decided why",
        ),
        pytest.param(
            OLD_DRIVER
            + tb(
                "/home/me/u.py <module> | from unsloth import FastLanguageModel",
                f"{SITE}/unsloth_zoo/device_type.py get_device_type",
                error="NotImplementedError: Unsloth cannot find any torch accelerator? You need a GPU.",
            ),
            "unsloth-one-gpu",
            "Unsloth finds no GPU, since the driver is older",
            id="the driver before Unsloth",
        ),
        pytest.param(
            "WARNING: Unsloth should be imported before [trl, transformers, peft] to ensure all optimizations are applied.\n"
            + APPLY_QKV,
            "unsloth-apply-qkv",
            "unsloth was imported after transformers",
            id="the warning about the order of imports",
        ),
        pytest.param(
            tb(
                f"{SITE}/verl/trainer/main_ppo.py main",
                f"{SITE}/verl/trainer/ppo/ray_trainer.py check_mutually_exclusive",
                error="ValueError: [actor_rollout_ref.rollout] Please set at least one of 'actor_rollout_ref.rollout.log_prob_micro_batch_size' or 'actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu' if use_dynamic_bsz is not enabled.",
            ),
            "verl-batch-sizes",
            "A micro batch size of verl is not set",
            id="nothing is said of dividing",
        ),
        pytest.param(
            tb(
                f"{SITE}/verl/utils/dataset/rl_dataset.py _build_messages | messages = example.pop(self.prompt_key)",
                error="KeyError: 'prompt'",
            ),
            "missing-prompt-column",
            "The rows of the data have no column prompt, which verl reads",
            id="verl's column of prompts",
        ),
        pytest.param(
            tb(
                f"{SITE}/flashinfer/jit/core.py run_ninja",
                error="FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
            ),
            "ninja-missing",
            "The build tool ninja is not found",
            id="a program, and no file of the run",
        ),
        pytest.param(
            tb(
                f"{SITE}/trl/trainer/grpo_trainer.py _calculate_rewards"
                " | rewards_per_func[:, i] = torch.tensor(output_reward_func, dtype=torch.float32, device=device)",
                error="TypeError: must be real number, not NoneType",
            ),
            "reward-none-refused",
            "A reward function returned None",
            id="None among the rewards",
        ),
        pytest.param(
            "[WARNING:swift] MaxLengthError: Current length of row(9012) is larger than the max_length(8192)\n"
            + tb(
                f"{SITE}/swift/llm/base.py main",
                f"{SITE}/torch/utils/data/sampler.py __init__",
                error="ValueError: num_samples should be a positive integer value, but got num_samples=0",
            ),
            "dataset-empty",
            "No row is left, and rows were longer than the limit",
            id="what emptied the data set stands above",
        ),
        pytest.param(
            tb(
                "/home/me/m.py <module> | m = m.merge_and_unload()",
                error="AttributeError: 'Qwen2ForCausalLM' object has no attribute 'merge_and_unload'",
            ),
            "adapter-none",
            "The model is no PeftModel",
            id="no matter of versions",
        ),
        pytest.param(
            tb(
                "/home/me/v.py <module>",
                f"{SITE}/PIL/Image.py open",
                error="PIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f20>",
            ),
            "image-unreadable",
            "An image file is broken",
            id="no matter of channels or sizes",
        ),
        pytest.param(
            tb(
                f"{SITE}/vllm/lora/models.py from_local_checkpoint",
                error="ValueError: While loading out/lora, expected target modules in ['qkv_proj'] but received ['modules_to_save.lm_head']. Please verify that the loaded LoRA module is correct",
            ),
            "lora-modules-refused",
            "The adapter has modules_to_save, embed_tokens or lm_head",
            id="modules_to_save",
        ),
        pytest.param(
            tb(
                f"{SITE}/vllm/model_executor/model_loader/weight_utils.py get_quant_config",
                error="ValueError: Cannot find the config file for awq",
            ),
            "engine-quantization",
            "The model's folder says nothing of the quantization",
            id="a plain model as awq",
        ),
    ],
)
def test_what_decides_leads(log: str, entry: str, title: str) -> None:
    first = explain_text(log).matches[0]
    assert (first.entry.id, first.doubt) == (entry, "")
    assert first.title.startswith(title)


def test_what_datasets_wraps_is_not_named_after_the_wrapper() -> None:
    log = tb("/home/me/gen.py gen | yield {'q': r['question']}", error="KeyError: 'question'") + GENERATION
    answer = explain_text(log)
    assert answer.matches == ()
    assert answer.advice is not None
    assert "'question'" in answer.advice.says


def test_a_wrapped_model_is_no_model_without_an_adapter() -> None:
    log = tb(
        "/home/me/s.py <module> | model.print_trainable_parameters()",
        error="AttributeError: 'DistributedDataParallel' object has no attribute 'print_trainable_parameters'",
    )
    assert [match.entry.id for match in explain_text(log).matches] == ["wrapped-model"]
