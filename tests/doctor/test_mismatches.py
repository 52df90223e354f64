"""Comparing the processes of one run: what differs is named once, with the ranks on each side; else silence."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.doctor.mismatches import compare, missing, where

NODE: dict[str, Any] = {
    "python": "3.11.7",
    "packages": {"torch": "2.6.0", "trl": "0.17.0", "datasets": "3.0"},
    "cuda": "12.4",
    "cublas": {"version": "12.4.5.8"},
    "driver": "550.54",
    "gpus": [{"name": "NVIDIA A100"}],
    "variables": {"NCCL_P2P_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "0"},
}
CHANGES = {
    "torch": lambda one: one["packages"].update(torch="2.5.0"),
    "datasets": lambda one: one["packages"].pop("datasets"),
    "CUDA": lambda one: one.update(cuda="12.1"),
    "cuBLAS": lambda one: one["cublas"].update(loaded_version="12.1.3"),
    "driver": lambda one: one.update(driver=None),
    "GPUs": lambda one: one["gpus"].append({"name": "NVIDIA H20"}),
    "NCCL_P2P_DISABLE": lambda one: one["variables"].clear(),
    "Python": lambda one: one.update(python="3.9.1"),
}


def world(size: int) -> list[dict[str, Any]]:
    return [{**copy.deepcopy(NODE), "rank": rank, "host": f"node{rank // 4}"} for rank in range(size)]


@given(st.integers(1, 16))
def test_alike_means_silence(size: int) -> None:
    ranks = world(size)
    for rank in ranks:
        rank["variables"]["CUDA_VISIBLE_DEVICES"] = str(rank["rank"])
    assert compare(ranks) == [] and missing(size, ranks) == []


@given(st.integers(2, 12), st.data())
def test_a_difference_is_named_with_its_ranks(size: int, data: st.DataObject) -> None:
    ranks = world(size)
    odd = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1))
    what = data.draw(st.sampled_from(sorted(CHANGES)))
    for rank in odd:
        CHANGES[what](ranks[rank])
    (finding,) = compare(ranks)
    assert what in finding.title
    assert finding.level == ("warning" if what in ("datasets", "driver", "NCCL_P2P_DISABLE") else "problem")
    for side in (odd, set(range(size)) - odd):
        assert where([ranks[rank] for rank in sorted(side)]) in finding.why


@given(st.integers(1, 16), st.data())
def test_who_is_missing(size: int, data: st.DataObject) -> None:
    came = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    found = missing(size, [rank for rank in world(size) if rank["rank"] in came])
    assert bool(found) == (len(came) < size)


def test_ranks_in_words() -> None:
    assert where(world(6)) == "node0 (ranks 0-3), node1 (ranks 4-5)"
    assert where([world(6)[5]]) == "node1 (rank 5)"
    assert where([{**NODE, "rank": "a", "host": "a.json"}]) == "a.json"
