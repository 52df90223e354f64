raise SystemExit("nothing here builds a training config")
