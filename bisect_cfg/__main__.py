"""``python -m bisect_cfg`` is ``bisect-cfg``."""

from bisect_cfg.cli import main

main()
