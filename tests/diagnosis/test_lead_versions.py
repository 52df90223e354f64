# ruff: noqa: E501  (a line of a log is one line)
"""Logs that were told wrongly, or not at all, at first sight: words of what leads, or of its first step."""

from __future__ import annotations

import re

import pytest

from bisect_cfg.diagnosis.explain import explain_text
from tests.diagnosis.test_claims_audit_a import ME, SITE, TRAINER, tb

LLAMA_FACTORY = "/srv/LLaMA-Factory/src/llamafactory"
KERNEL = (
    "triton.compiler.errors.CompilationError: at 4:31:def _geglu_tanh_forward_kernel(\n"
    "    a, b, c, stride, n_cols: tl.constexpr, BLOCK_SIZE: tl.constexpr\n"
    "):\n"
    "    program_id = tl.program_id(0).OPERATION(tl.int64)\n"
    "                               ^\n"
    "AttributeError(\"'tensor' object has no attribute 'OPERATION'\")"
)
COMPILING = (
    f"{SITE}/triton/compiler/code_generator.py ast_to_ttir | raise CompilationError(fn.src, node, repr(e)) from e"
)
UNKNOWN_KEYS = "ValueError: Some keys are not used by the HfArgumentParser: ['do_train', 'output_dir', 'save_steps']"
PARSING = f"{SITE}/transformers/hf_argparser.py parse_dict"
TRAINED = "".join(f"{{'loss': 0.{70 - at}, 'learning_rate': 1e-05, 'epoch': 0.{at}}}\n" for at in range(10, 20))
EVALUATING = f"{SITE}/transformers/trainer.py _maybe_log_save_evaluate | metrics = self.evaluate(ignore_keys=keys)"


def of_axolotl(field: str, said: str) -> str:
    return tb(
        f"{SITE}/axolotl/cli/config.py load_cfg | cfg = validate_config(",
        f"{SITE}/pydantic/main.py __init__ | self.__pydantic_validator__.validate_python(data, self_instance=self)",
        error=f"pydantic_core._pydantic_core.ValidationError: 1 validation error for AxolotlInputConfig\n{field}\n  {said}\n    For further information visit https://errors.pydantic.dev/2.6/v/x",
    )


def of_torchtune(key: str) -> str:
    return tb(
        f"{SITE}/torchtune/models/convert_weights.py get_mapped_key | raise Exception(",
        error=f'Exception: Error converting the state dict. Found unexpected key: "{key}". Please make sure you\'re loading a checkpoint with the right format. ',
    )


TOLD = {
    "a Triton without cast": ("enable_liger_kernel: false", tb(f"{LLAMA_FACTORY}/launcher.py <module>", COMPILING, error=KERNEL.replace("OPERATION", "cast"))),
    "a Triton without another operation": ("A kernel asks Triton for advance", tb(ME, COMPILING, error=KERNEL.replace("OPERATION", "advance"))),
    "types of settings that accelerate lacks": (
        'pip install -U "accelerate>=1.10.1"',
        tb(f"{SITE}/trl/cli.py main", f"{SITE}/transformers/hf_argparser.py _add_dataclass_arguments | type_hints = get_type_hints(dtype)", error="NameError: name 'ParallelismConfig' is not defined"),
    ),
    "what transformers 5 notes on weights": (
        "bitsandbytes is too old for transformers 5",
        tb(ME, f"{SITE}/accelerate/utils/modeling.py set_module_tensor_to_device", error="TypeError: Int8Params.__new__() got an unexpected keyword argument '_is_hf_initialized'"),
    ),
    "what else a quantized weight is handed": (
        "do not take quant_storage",
        tb(ME, f"{SITE}/accelerate/utils/modeling.py set_module_tensor_to_device", error="TypeError: Params4bit.__new__() got an unexpected keyword argument 'quant_storage'"),
    ),
    "shards that are whole": (
        "expects each as a DTensor",
        tb("/data/scripts/model_merger.py <module> | assert isinstance(tensor, DTensor)", error="AssertionError"),
    ),
    "single values among shards": (
        "keep the shards: nothing has to be trained anew",
        tb(ME, f"{SITE}/oumi/utils/verl_model_merger.py _load_and_merge_state_dicts | state_dict[key] = torch.cat(state_dict[key], dim=0)", error="RuntimeError: zero-dimensional tensor (at position 0) cannot be concatenated"),
    ),
    "single values of one's own": (
        "torch.stack(values)",
        tb("/w/train.py evaluate | losses = torch.cat(losses)", error="RuntimeError: zero-dimensional tensor (at position 0) cannot be concatenated"),
    ),
    "tied weights at an export": (
        "export_legacy_format: true",
        tb(f"{LLAMA_FACTORY}/train/tuner.py export_model | model.save_pretrained(", f"{SITE}/safetensors/torch.py _flatten | raise RuntimeError(", error="RuntimeError: \n            Some tensors share memory, this will lead to duplicate memory on disk and potential differences when loading them again: [{'lm_head.weight', 'model.embed_tokens.weight'}]."),
    ),
    "a configuration without a key": (
        'add "num_key_value_heads" with the number of num_attention_heads',
        tb(f'{SITE}/torchtune/training/checkpointing/_checkpointer.py load_checkpoint | num_kv_heads=self._config["num_key_value_heads"],', error="KeyError: 'num_key_value_heads'"),
    ),
    "options of another version": ("git pull", "usage: train_rl.py [-h]\ntrain_rl.py: error: unrecognized arguments: --save_answers /out/a.jsonl --accuracy_filter\n"),
    "a training's file for another subcommand": ("llamafactory-cli train FILE.yaml with this file", tb("/envs/lf/bin/llamafactory-cli <module> | sys.exit(main())", PARSING, error=UNKNOWN_KEYS)),
    "the same keys elsewhere": ("look each of them up", tb(ME, PARSING, error=UNKNOWN_KEYS)),
    "a merge into rounded weights": (
        "merge into the same model without quantization",
        tb(f'{LLAMA_FACTORY}/train/tuner.py export_model | raise ValueError("Cannot merge adapters to a quantized model.")', error="ValueError: Cannot merge adapters to a quantized model."),
    ),
    "PEFT's words for it": (
        "merge into the same model without quantization",
        tb(ME, f"{SITE}/peft/tuners/lora/model.py merge_and_unload", error="ValueError: Cannot merge LORA layers when the model is gptq quantized"),
    ),
    "a list in Axolotl's file": ("Axolotl wants a list for datasets,", of_axolotl("datasets", "Input should be a valid list [type=list_type, input_value={'path': 'a/b'}, input_type=dict]")),
    "a number in Axolotl's file": ("another kind than learning_rate takes", of_axolotl("learning_rate", "Input should be a valid number, unable to parse string as a number [type=float_parsing, input_value='1e-5x', input_type=str]")),
    "a field that is missing there": ("needed there (datasets.0.type)", of_axolotl("datasets.0.type", "Field required [type=missing, input_value={'path': 'a.jsonl'}, input_type=dict]")),
    "a PEFT that is too new": (
        'pip install "peft<0.14"',
        tb(f"{SITE}/transformers/utils/import_utils.py _get_module", f"{SITE}/peft/peft_model.py <module> | from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel", error="RuntimeError: Failed to import transformers.trainer because of the following error (look up to see its traceback):\ncannot import name 'EncoderDecoderCache' from 'transformers' (/opt/site-packages/transformers/__init__.py)"),
    ),
    "DeepSpeed's stand-in": (
        "one GPU: without DeepSpeed",
        tb(ME, TRAINER, f"{SITE}/accelerate/optimizer.py step | self.optimizer.step(closure)", error="AttributeError: 'DummyOptim' object has no attribute 'step'"),
    ),
    "a scheduler on the stand-in": (
        "do not fit each other",
        tb(ME, f"{SITE}/torch/optim/lr_scheduler.py __init__", error="AttributeError: 'DummyOptim' object has no attribute 'param_groups'"),
    ),
    "Meta's names": ("FullModelMetaCheckpointer in place of", of_torchtune("layers.0.attention.wq.weight")),
    "Hugging Face's names": ("in Hugging Face's format, and is read as Meta's", of_torchtune("model.layers.0.self_attn.q_proj.weight")),
    "names of another family": ("does model_type name this very family", "Running with FullModelHFCheckpointer\n" + of_torchtune("model.layers.0.self_attn.q_norm.weight")),
    "rows of GRPO that Axolotl takes for DPO's": (
        "reads the rows of a GRPO run as preferences",
        '  "rl": "grpo",\n' + tb(f"{SITE}/axolotl/prompt_strategies/dpo/chat_template.py transform_fn | chosen_raw = sample[field_chosen]", error="KeyError: 'chosen'"),
    ),
    "rows of DPO that lack a field": (
        "A column is asked for",
        '  "rl": "dpo",\n' + tb(f"{SITE}/axolotl/prompt_strategies/dpo/chat_template.py transform_fn | chosen_raw = sample[field_chosen]", error="KeyError: 'chosen'"),
    ),
    "an evaluation of other rows": (
        "The rows of the evaluation data have no input_ids_chosen",
        TRAINED + tb("/w/rm.py <module> | trainer.train()", EVALUATING, '/w/rm.py __call__ | "input_ids": feature["input_ids_chosen"],', error="KeyError: 'input_ids_chosen'"),
    ),
    "rows of another step of open-instruct": (
        "print(train_dataset.column_names): chosen or rejected",
        tb("/w/open_instruct/grpo_fast.py main | visualize_token(train_dataset[0][INPUT_IDS_PROMPT_KEY], tokenizer)", error="KeyError: 'input_ids_prompt'"),
    ),
    "a template that was not meant": ("is it the one that was meant?", tb(ME, f"{SITE}/transformers/tokenization_utils_base.py apply_chat_template", error="jinja2.exceptions.TemplateError: Conversation roles must alternate user/assistant/user/assistant/...")),
}  # fmt: skip


@pytest.mark.parametrize(("words", "log"), TOLD.values(), ids=TOLD.keys())
def test_what_leads(words: str, log: str) -> None:
    told = " ".join(str(explain_text(log)).split())
    assert words in re.split("Why this|It may have to do with this", told)[0]


NOT_SAID = {
    "a name that Unsloth has nothing to do with": ("Unsloth", tb(ME, error="NameError: name 'ParallelismConfig' is not defined")),
    "an evaluation that worked before": (
        "evaluation data have no",
        TRAINED + "{'eval_loss': 0.41, 'eval_runtime': 3.1, 'epoch': 0.2}\n" + tb("/w/rm.py <module> | trainer.train()", EVALUATING, '/w/rm.py compute | x = out["labels"]', error="KeyError: 'labels'"),
    ),
    "a check in a training": ("puts shards of weights together", tb("/w/train.py main | assert isinstance(param, DTensor)", error="AssertionError")),
    "an export without LLaMA-Factory": ("LLaMA-Factory cannot", tb("/w/tools.py export_model", error="RuntimeError: Some tensors share memory, this will lead to duplicate memory on disk and potential differences when loading them again: [{'a', 'b'}].")),
    "a train that was a train": ("another subcommand of", tb("/envs/lf/bin/llamafactory-cli <module>", f"{LLAMA_FACTORY}/hparams/parser.py get_train_args", PARSING, error="ValueError: Some keys are not used by the HfArgumentParser: ['do_trian']")),
    "a Triton that is too new": ("is older than", tb(ME, f"{SITE}/triton/compiler/code_generator.py visit", error="AttributeError: module 'triton.language' has no attribute 'libdevice'")),
}  # fmt: skip


@pytest.mark.parametrize(("words", "log"), NOT_SAID.values(), ids=NOT_SAID.keys())
def test_what_is_not_said(words: str, log: str) -> None:
    assert words not in " ".join(str(explain_text(log)).split())
