"""Makes what the study needs in a folder: wheels of two versions of a stand-in for cuBLAS, an environment with the
older one, a stand-in for nvidia-smi, the script of `trl_2906` and good.txt.

    python studies/trl_2906_root_cause/make.py FOLDER
"""

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from stand_in import environment, wheel  # noqa: E402

NAME, MODULE = "nvidia-cublas-cu12", "h20_simulation.py"
GOOD, BAD = "12.4.5.8+simulated", "12.1.3.1+simulated"

NVIDIA_SMI = """\
#!/bin/sh
# A stand-in: this machine has no H20.
echo "NVIDIA H20, 97871, 535.161.08, 9.0"
"""


def main(folder: Path) -> None:
    fault = (HERE.parent / "trl_2906" / MODULE).read_text()
    cured = fault.rpartition("torch.nn.modules.module.register")[0]  # all but the line that has it happen
    wheels = folder / "wheels"
    wheel(wheels, NAME, GOOD, {MODULE: cured}, "torch")
    environment(folder, wheel(wheels, NAME, BAD, {MODULE: fault}, "torch"))
    for name in ("train.py", "good.yaml"):
        shutil.copy(HERE.parent / "trl_2906" / name, folder / name)
    (folder / "good.txt").write_text(f"{NAME}=={GOOD}\n")
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
