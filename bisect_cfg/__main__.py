"""``python -m bisect_cfg`` is ``bisect-cfg``."""

from bisect_cfg.entry import main

main()
