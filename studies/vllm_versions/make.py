"""Makes what the study needs in a folder: two wheels of the stand-in, an environment with the newer one, good.txt.

    python studies/vllm_versions/make.py FOLDER

The environment has what the interpreter has that runs this, and the stand-in.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
GOOD, BAD = "0.10.2", "0.11.0"


def wheel(folder: Path, version: str) -> Path:
    """A wheel of one version of the stand-in."""
    path = folder / f"toyllm-{version}-py3-none-any.whl"
    info = f"toyllm-{version}.dist-info"
    files = {
        "toyllm.py": (HERE / "toyllm" / f"{version}.py").read_text(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: toyllm\nVersion: {version}\nRequires-Dist: torch\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: make.py\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


def main(folder: Path) -> None:
    from uv import find_uv_bin

    folder.mkdir(parents=True, exist_ok=True)
    good, bad = wheel(folder, GOOD), wheel(folder, BAD)
    (folder / "good.txt").write_text(f"./{good.name}\n")
    uv, python = find_uv_bin(), str(folder / "env" / "bin" / "python")
    here = subprocess.run([uv, "pip", "freeze", "--python", sys.executable], capture_output=True, text=True, check=True)
    lines = [line for line in here.stdout.splitlines() if not line.startswith("-e") and "bisect" not in line]
    (folder / "environment.txt").write_text("\n".join([*lines, str(bad.resolve())]) + "\n")
    subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder / "env")], check=True)
    install = [uv, "pip", "install", "-q", "--no-deps", "--python", python, "-r", str(folder / "environment.txt")]
    subprocess.run(install, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
