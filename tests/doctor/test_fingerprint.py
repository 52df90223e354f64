"""The fingerprint: complete, quick, from this interpreter and from another, and never through torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bisect_cfg.common.fingerprint import describe, fingerprint
from bisect_cfg.probe.machine import parse_gpus


def test_this_interpreter_and_asking_it_agree() -> None:
    here, asked = fingerprint(), fingerprint(sys.executable)
    assert here["python"] == asked["python"]
    assert here["packages"] == asked["packages"]
    assert "optuna" in here["packages"]
    assert here["python"] in describe(here)


def test_torch_is_not_imported() -> None:
    code = (
        "import sys; from bisect_cfg.common.fingerprint import fingerprint; fingerprint();"
        "sys.exit(any(name in sys.modules for name in ('torch', 'trl', 'transformers', 'optuna')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


def test_a_wrong_interpreter_is_said() -> None:
    result = fingerprint("no-such-python")
    assert "no-such-python" in result["error"]
    assert describe(result)


def test_environment_variables_are_named_ones_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    assert "secret" not in str(fingerprint())
    assert fingerprint()["variables"]["NCCL_P2P_DISABLE"] == "1"


def test_gpu_table() -> None:
    driver, gpus = parse_gpus("NVIDIA H20, 97871, 550.54.15, 9.0\nNVIDIA GB10, [N/A], 580.1, 12.1\nnoise\n")
    assert driver == "580.1"
    assert [gpu["name"] for gpu in gpus] == ["NVIDIA H20", "NVIDIA GB10"]
    assert [gpu["memory_mb"] for gpu in gpus] == [97871, None]


@pytest.mark.parametrize(
    ("version", "text", "tag"),
    [
        ("2.5.1+cu121", "", "12.1"),
        ("2.5.1", "cuda: Optional[str] = '12.4'\n", "12.4"),
        ("2.9", "cuda = None\n", None),
    ],
)
def test_cuda_tag_from_version_or_file(tmp_path: Path, version: str, text: str, tag: str | None) -> None:
    info = tmp_path / f"torch-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(text)
    code = "import sys, runpy; sys.path.insert(0, sys.argv[1]); " + (
        "from bisect_cfg.probe.machine import cuda_tag; print(cuda_tag())"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    answer = subprocess.run(run, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert answer.stdout.strip() == str(tag)
