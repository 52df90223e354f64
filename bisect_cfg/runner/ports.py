"""Ports of this machine: runs that follow each other, or go on at once, must not meet at one."""

from __future__ import annotations

import socket
from collections.abc import Mapping

_ports_given: set[int] = set()


def own_port(environment: Mapping[str, str]) -> dict[str, str]:
    """Where the environment makes a training config open a process group of one (as torchrun leaves it), a free port
    for it; nothing otherwise. Trials that run at once must not meet, and one that is being ended may hold its port a
    moment longer."""
    alone = environment.get("WORLD_SIZE", "1") == "1"
    if not alone or "MASTER_PORT" not in environment:
        return {}
    return {"MASTER_PORT": str(free_port())}


def free_port() -> int:
    """A port that nobody listens on, another one each time."""
    port = 0
    for _ in range(100):  # the system hands out others each time, as a rule
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        if port not in _ports_given:
            break
    _ports_given.add(port)
    return port
