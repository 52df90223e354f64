"""Variables of a launcher with one process in the environment (as in a shell inside of torchrun): every training config
opens a process group on MASTER_PORT. No process of ours may hold that port, and trials that follow each other, or run
at once, must not meet there."""

from __future__ import annotations

import json
import socket

from toys import script

STAND_IN = """
    import socket
    def open_group():  # what building a training config does with these variables
        if "RANK" in os.environ:
            group = socket.socket()
            group.bind(("127.0.0.1", int(os.environ["MASTER_PORT"])))
            group.listen()
            return group
    import trl.trainer.grpo_config as config
    original = config.GRPOConfig.__post_init__
    def post_init(self):
        original(self)
        type(self).group = open_group()  # held until the process ends
    config.GRPOConfig.__post_init__ = post_init
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, bf16=True, beta=0.04, temperature=0.9, weight_decay=0.1)
    def step(number):
        if args.bf16 and number == 2:
            os.kill(os.getpid(), signal.SIGFPE)
    GRPOTrainer(args, step).train()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launched(tool) -> None:
    tool.environment.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())
    )


def test_trials_do_not_meet(tool):
    launched(tool)
    script(tool.folder, STAND_IN)
    for study, *options in (("one",), ("three", "--jobs", 3)):
        said = tool("bisect", "train.py", "--study", study, "--no-recommend", "--no-where", *options)
        assert said.status == 0, said.all
        result = json.loads((tool.folder / study / "result.json").read_text())
        assert [list(cause["parameters"]) for cause in result["causes"]] == [["bf16"]]
        logs = [path.read_text(errors="replace") for path in (tool.folder / study).glob("trials/*/log.txt")]
        assert logs and not any("Address already in use" in log for log in logs)
        tool.assert_nothing_left()
