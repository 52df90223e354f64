"""Whether a script may train once more, told from what is left of it to run."""

from __future__ import annotations

import sys
import textwrap
import threading

import pytest

from bisect_cfg.probe import again

TRAINER = """
    class Trainer:
        def train(self):
            note(self)

        def save_model(self):
            return None
"""

ENDS = {
    "the only one": """
        trainer = Trainer()
        trainer.train()
        trainer.save_model()
    """,
    "in main": """
        def evaluate(trainer):
            for _ in range(3):
                trainer.save_model()

        def main():
            trainer = Trainer()
            if trainer:
                trainer.train()
            evaluate(trainer)

        main()
    """,
    "a loop before": """
        for _ in range(3):
            pass
        Trainer().train()
    """,
    "a function that is not called any more": """
        def other():
            Trainer().train()

        Trainer().train()
    """,
}

GOES_ON = {
    "a loop": """
        for _ in range(1):
            Trainer().train()
    """,
    "a loop around a call": """
        def once():
            Trainer().train()

        def sweep():
            while True:
                once()
                break

        sweep()
    """,
    "a comprehension": """
        def once(_):
            Trainer().train()

        [once(number) for number in range(1)]
    """,
    "another below": """
        first = Trainer()
        first.train()
        second = Trainer()
        second.train() if False else None
    """,
    "another function": """
        def grpo():
            run()

        def run():
            Trainer().train()

        def main():
            Trainer().train()
            if False:
                grpo()

        main()
    """,
    "another method": """
        class Stages:
            def warm_up(self):
                Trainer().train()

            def real(self):
                Trainer().train()

        stages = Stages()
        stages.warm_up()
        if False:
            stages.real()
    """,
}


@pytest.mark.parametrize(
    ("text", "expected"), [*((text, False) for text in ENDS.values()), *((text, True) for text in GOES_ON.values())],
    ids=[*ENDS, *GOES_ON],
)  # fmt: skip
def test_what_is_left_of_the_script(tmp_path, text, expected):
    path, found = tmp_path / "train.py", []
    path.write_text(textwrap.dedent(TRAINER) + textwrap.dedent(text))
    code = compile(path.read_text(), str(path), "exec")

    def note(trainer):
        found.append(again.may_train(sys._getframe(2)))

    script = threading.Thread(target=exec, args=(code, {"__name__": "__main__", "__file__": str(path), "note": note}))
    script.start()  # not below this test, of whose callers one may well go round
    script.join()
    assert found == [expected]


def test_a_script_without_a_source_is_not_gone_on_with():
    found: list[bool] = []
    names = {"__name__": "script", "note": lambda: found.append(again.may_train(sys._getframe(1)))}
    script = threading.Thread(target=exec, args=("for _ in range(1): note()", names))
    script.start()
    script.join()
    assert found == [False]
