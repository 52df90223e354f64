"""Makes what the study needs in a folder: two wheels of the stand-in, an environment with the newer one, good.txt.

    python studies/vllm_versions/make.py FOLDER

The environment has what the interpreter has that runs this, and the stand-in.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from stand_in import environment, wheel  # noqa: E402

GOOD, BAD = "0.10.2", "0.11.0"


def main(folder: Path) -> None:
    good, bad = (
        wheel(folder, "toyllm", one, {"toyllm.py": (HERE / "toyllm" / f"{one}.py").read_text()}, "torch")
        for one in (GOOD, BAD)
    )
    (folder / "good.txt").write_text(f"./{good.name}\n")
    environment(folder, bad)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
