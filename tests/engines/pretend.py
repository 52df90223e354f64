"""An engine process with two sites that are made up: what they do with a plan is the first argument.

"falls"     each goes down with every plan, and comes up again
"late"      the first goes down with its first plan; when that runs elsewhere it says what came of it after all
"differs"   the second has another torch
"""

import json
import sys
from importlib import metadata

MODE, BEFORE = sys.argv[1], []


def say(**message):
    print(json.dumps(message), flush=True)


def tell(slot, **message):
    say(op="line", slot=slot, line=json.dumps(message))


def end(slot, attempt, name):
    kind = "bisect_cfg.runner.plan:Result"
    tell(slot, op="answer", number=attempt, value={"$kind": kind, "fields": {"name": name}})


def up(slot):
    say(op="up", slot=slot, node=f"node-{slot}", devices=[], jobs=1)
    torch = "2.9.1" if MODE == "differs" and slot else "2.10.0"
    about = {"version": metadata.version("bisect-cfg"), "sees": True, "hashes": {}}
    tell(slot, op="hello", fingerprint={"packages": {"torch": torch}}, **about)


def on(slot, message):
    if message["op"] == "run":
        fields = message["plan"]["fields"]
        BEFORE.append(message["number"])
        if MODE == "falls" or (MODE == "late" and len(BEFORE) == 1):
            say(op="down", slot=slot, why="it fell")
            up(slot)
        else:
            if MODE == "late":
                end(0, BEFORE[0], "what the lost attempt says")
            end(slot, message["number"], fields["name"])


up(0)
up(1)
say(op="all_up")
for line in sys.stdin:
    message = json.loads(line)
    on(message["slot"], json.loads(message["line"]))
