# The commands of CONTRIBUTING.md by name: `just fast`. Installed by `uv tool install rust-just`.

# the environment, from nothing but Python and pip
setup:
    python3 -m venv .venv && .venv/bin/pip install -q uv && .venv/bin/uv pip install -q -p .venv --compile-bytecode -r requirements.lock -e .

# form and types
check:
    .venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

# the pure decisions: at each save
fast *options:
    .venv/bin/pytest -m "not training" {{ options }}

# what lands must pass
landing *options:
    .venv/bin/pytest {{ options }}

# other ways through what landing shows: name the places of the table in CONTRIBUTING.md
slow +places:
    .venv/bin/pytest --slow -m slow {{ places }}

# the kept answers
golden *parts:
    .venv/bin/python golden/compare.py {{ parts }}
