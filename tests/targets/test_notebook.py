"""Notebooks as scripts: each line where it was, what Jupyter has put in front, what trials must not do left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import toys

from bisect_cfg.common.cells import cells_in, code_cells, named, place_in, with_cells
from bisect_cfg.errors import InputError
from bisect_cfg.store.inputs import hash_of
from bisect_cfg.targets.notebook import Notebook, as_script, read_notebook
from bisect_cfg.targets.script import find_script

NAME = Path("train.ipynb")


def made(*cells: str, lacks: tuple[str, ...] = ()) -> Notebook:
    return as_script(NAME, cells, "python", lambda names: [name for name in names if name in lacks])


def cell(source: str) -> str:
    """What stands in the script for a single cell."""
    return cells_in(made(source).text)[1]


def run(notebook: Notebook, folder: Path, **variables: str) -> str:
    """What it prints as a script."""
    path = folder / "train.ipynb.py"
    path.write_text(notebook.text)
    done = subprocess.run(
        [sys.executable, "-u", str(path)], capture_output=True, text=True, cwd=folder, check=True,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin", **variables},
    )  # fmt: skip
    return done.stdout


PLAIN = (
    "import os\nos.environ['WANDB_DISABLED'] = 'true'\n",
    "def reward(completions, **kwargs):\n    '''%s\n!no magic'''\n    return [('%d'\n % 3) for _ in completions]\n",
    "trainer = 1\ntrainer\n",
)


@pytest.mark.parametrize("source", PLAIN)
def test_plain_cells_stay_as_they_are(source: str) -> None:
    assert cell(source) == source


INSTALLS = (
    "!pip install -q trl", "%pip install trl", "!uv pip install vllm", "!apt-get -qq install -y git && ls",
    "!python -m pip install -U trl", "!sudo apt update", "!git clone x && cd x && pip3 install -e .",
    "%conda install -y x", "!pip install --no-deps a \\\n  b", "!/opt/bin/pip uninstall -y x", "%uv pip install x",
    "!A=1 pip -q install x", "!{sys.executable} -m pip install x",
)  # fmt: skip


@pytest.mark.parametrize("line", INSTALLS)
def test_lines_that_install_packages_are_not_run_and_it_is_said(line: str) -> None:
    notebook = made(f"import os\nif True:\n    {line}\nx = 1\n", lacks=("IPython",))
    assert "get_ipython" not in notebook.text
    assert notebook.notes == (f"Not run, because trials install nothing: {' '.join(line.split())} (cell 1, line 3).",)
    compile(notebook.text, "script", "exec")


def test_other_lines_of_a_shell_are_run() -> None:
    assert "get_ipython().system('pip list')" in cell("!pip list")
    assert "get_ipython().getoutput('ls /apt')" in cell("x = !ls /apt")
    for line in ("!echo install pip", "!pip list && echo install x", "!ls apt install", "%pip freeze", "!uv run x.py"):
        assert made(line).notes == (), line


UNSLOTH = """%%capture
import os
if "COLAB_" not in "".join(os.environ.keys()):
    !pip install unsloth vllm
else:
    # Do this only in Colab notebooks!
    !pip install --no-deps unsloth \\
        vllm==0.8.5
done = True
"""


def test_every_line_stays_where_it_is() -> None:
    sources = (
        UNSLOTH,
        "\n\n%matplotlib inline\n%load_ext autoreload\nimport torch  # here\nfiles = !ls \\\n  -l\n?torch\nlast = 1\n",
        "%%time\nlast = 2\n",
        '#@title Install { display-mode: "form" }\n\n%%capture\n# these\n!pip install x\nlast = 3\n',
        "  x = 1\n  y = 2  # IPython takes the indent away\n",
        "from __future__ import annotations\nz = 3\n",
        "%%bash\npip install a\necho hi\n",
    )
    text = made(*sources).text
    compile(text, "script", "exec")
    parts = cells_in(text)
    for number, source in enumerate(sources, 1):
        # a cell of another language is one call; between two cells there is an empty line
        lines = parts[number].rstrip("\n").split("\n")
        assert len(lines) <= len(source.rstrip("\n").split("\n"))
        for line, (ours, theirs) in enumerate(zip(lines, source.split("\n"), strict=False), 1):
            if ours.strip() and not theirs.lstrip().startswith(("%", "!", "?", "files", "from __f")):
                assert ours.strip() == theirs.strip(), (number, line)


def test_magics_of_the_page_need_no_ipython() -> None:
    cells = (
        "%matplotlib inline",
        "%load_ext autoreload\n%autoreload 2",
        "%%time\n%time x = 3\n",
        "?print",
        "%%html\n<b>",
    )
    notebook = made(*cells, lacks=("IPython",))
    assert notebook.notes == () and "\nx = 3\n" in notebook.text and "get_ipython" not in notebook.text


@pytest.mark.parametrize("line", ["!nvidia-smi", "%cd x", "%%bash\necho", "x = !ls", "%env A=1"])
def test_where_ipython_is_missing_the_first_line_that_needs_it_is_named(line: str) -> None:
    with pytest.raises(InputError, match="which python does not have: train.ipynb, cell 2, line 1: ") as caught:
        made("import os", line, lacks=("IPython",))
    assert line.split("\n")[0] in caught.value.message and "ipython" in caught.value.advice


def test_what_jupyter_has_a_script_has(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("found = 'beside'")
    notebook = as_script(
        tmp_path / "train.ipynb",
        [
            "%env MODE=fast\nimport os, sys, beside\nprint(os.environ['MODE'], beside.found)",
            "from __future__ import annotations\ndef f(x: Unknown): return x\nprint(f(1), '__file__' in globals())",
            "words = !echo a b\nprint(words, sys.modules['__main__'].words)\nname = 'x'\n!echo {name}y",
            "display('shown')\nwords",
        ],
        "python",
        lambda names: [],
    )
    printed = run(notebook, tmp_path)
    assert printed.split("\n") == [
        "env: MODE=fast", "fast beside", "1 False", "['a b'] ['a b']", "xy", "'shown'", ""
    ]  # fmt: skip
    threads = made("%env A=1", "import threading\nprint(threading.active_count())")
    assert run(threads, tmp_path).endswith("\n1\n")  # with another one nothing could be forked


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (("x = 1", "a = 1\nb = (2"), "cell 2, line 2 is not valid Python ('(' was never closed): b = (2"),
        (("def f():\nreturn 1",), "cell 1, line 2 is not valid Python"),
        (("%%time\nx = = 1",), "cell 1, line 2 is not valid Python"),
        (("!ls\n\nif x = 1:\n    pass",), "cell 1, line 3 is not valid Python"),
        (("async with x: pass",), "cell 1, line 1 is not valid Python ('async with' outside"),
        (("x = 1", "return x"), "cell 2, line 1 is not valid Python ('return' outside function): return x"),
    ],
)
def test_a_cell_that_is_no_python(cells: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError) as caught:
        made(*cells)
    assert f"train.ipynb, {words}" in caught.value.message and caught.value.advice


def test_files_that_are_no_notebook(tmp_path: Path) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            find_script(str(path))
        assert caught.value.advice
        return caught.value.message

    bad = tmp_path / "bad.ipynb"
    for text in ("no json", "[]", '{"cells": 3}', '{"cells": [{"cell_type": "code"}]}', "", '{"cells": [' * 9999):
        bad.write_text(text)
        assert "is not a notebook" in refused(bad)
    assert "has no code" in refused(toys.notebook(tmp_path, "", "  \n"))
    assert "is in R," in refused(toys.notebook(tmp_path, "x <- 1", language="R"))
    for name in ("none.ipynb", "none.py"):
        assert "There is no script" in refused(tmp_path / name)


def test_whoever_starts_a_notebook_otherwise_is_told_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toys.notebook(tmp_path, "x = 1")
    for words in ("python {}", "papermill {} out.ipynb", "python -m jupyter execute {}"):
        with pytest.raises(InputError) as caught:
            find_script(words.split()[0], words.format(path).split()[1:])
        assert f"bisect-cfg bisect {path}" in caught.value.advice


def test_plots_open_no_windows_as_in_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPLBACKEND", raising=False)
    plots = find_script(str(toys.notebook(tmp_path, "import matplotlib.pyplot as plt\nplt.show()")))
    assert plots.variables == {"MPLBACKEND": "agg"}
    assert find_script(str(toys.notebook(tmp_path, "x = 1"))).variables == {}


def test_old_and_odd_notebooks(tmp_path: Path) -> None:
    path = tmp_path / "old.ipynb"
    path.write_text(
        '\ufeff{"worksheets": [{"cells": [{"cell_type": "code", "input": ["a\\n", "b"]}]}], "metadata": {}}'
    )
    assert read_notebook(path) == ["a\nb"]
    assert code_cells('{"cells": [{"cell_type": "code", "source": "x"}, {"cell_type": "raw", "source": "y"}]}') == ["x"]


def test_running_the_cells_again_leaves_the_notebook_the_same(tmp_path: Path) -> None:
    path = toys.notebook(tmp_path, "x = 1", "y = 2")
    before = hash_of(path)
    path.write_text(path.read_text().replace('"execution_count": 1', '"execution_count": 9').replace("of 1", "again"))
    assert hash_of(path) == before
    toys.notebook(tmp_path, "x = 1", "y = 3")
    assert hash_of(path) != before


def test_lines_are_named_by_their_cells(tmp_path: Path) -> None:
    notebook = made("import os\n", "def reward(x):\n    return x\n")
    path = tmp_path / "train.ipynb.py"
    path.write_text(notebook.text)
    line = notebook.text.split("\n").index("    return x") + 1
    assert named(str(path), line, "reward", str) == "train.ipynb, cell 2, line 2 in reward: return x"
    assert named(str(path), line - 1, "<module>", str) == "train.ipynb, cell 2, line 1: def reward(x):"
    assert named("/x/train.py", 3, "f", lambda path: "train.py") == "train.py:3 in f"
    assert with_cells(f'  File "{path}", line {line}, in reward\n') == "  train.ipynb, cell 2, line 2, in reward\n"
    assert place_in(notebook.text, 1, path) is None  # what stands in front of the cells
