"""What a training config that is built to be checked is told, and what of it the library has looked at."""

from __future__ import annotations

import dataclasses

import pytest

from bisect_cfg.probe import validity
from bisect_cfg.probe.protocol import BuildRequest


@dataclasses.dataclass
class Config:
    output_dir: str = "out"
    batch: int = 8
    groups: int = 8
    unread: float = 0.5

    @property
    def world_size(self) -> int:
        return 1

    def __post_init__(self) -> None:
        if self.batch * self.world_size % self.groups:
            raise ValueError("no whole groups")


def request(batch: int, processes: int) -> BuildRequest:
    return BuildRequest(module=__name__, cls="Config", raw={}, overrides={"batch": batch}, world_size=processes)


@pytest.mark.parametrize("order", [(1, 2, 1, 2), (2, 1, 2, 1)])
def test_one_process_builds_configs_for_any_number(order):
    errors = [validity.build(request(4, processes)).error for processes in order]
    assert errors == [None if processes == 2 else "ValueError: no whole groups" for processes in order]


def test_only_what_the_library_has_looked_at_tells_configs_apart():
    answer = validity.build(request(16, 1))
    assert answer.error is None and answer.values["unread"] == 0.5
    assert {"batch", "groups"} <= set(answer.reads) and "unread" not in answer.reads


@dataclasses.dataclass
class LooksAtAll(Config):
    def __post_init__(self) -> None:
        if vars(self)["unread"] < 0:
            raise ValueError("negative")


def test_a_config_that_looks_at_all_its_fields_at_once():
    answer = validity.build(BuildRequest(module=__name__, cls="LooksAtAll", raw={}, overrides={"unread": -1.0}))
    assert answer.error == "ValueError: negative" and "unread" in answer.reads


@dataclasses.dataclass
class LooksForItsGroup(Config):
    ddp_backend: str | None = None

    def __post_init__(self) -> None:
        if self.ddp_backend is not None:  # accelerate, with use_cpu
            raise ValueError("Default process group has not been initialized")


def test_one_process_builds_the_config_of_a_rank_whose_backend_is_named():
    item = BuildRequest(__name__, "LooksForItsGroup", raw={"ddp_backend": "gloo"}, overrides={}, world_size=2)
    answer = validity.build(item)
    assert answer.error is None and answer.values["ddp_backend"] == "gloo"
