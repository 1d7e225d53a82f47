"""Tables on several workers of one process: threads that are joined in memory, by shared memory or by TCP."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from poseidon.comm.stale.table import Table
from poseidon.run.tables import Tables
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers
from poseidon.transport.onesided import Endpoint
from poseidon.transport.onesided.inproc import Tricks
from tests.transport.onesided.ends import opened

MODES = ("ssp", "ssp-push", "ssp-managed")


class Carried:
    """A transport whose notified puts go another way."""

    def __init__(self, inner: Transport, kind: str) -> None:
        self._inner, self._kind = inner, kind

    def one_sided(self) -> Endpoint:
        return opened(self._kind, self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def with_tables(
    size: int,
    act: Callable[[Tables], Any],
    *,
    kind: str = "inproc",
    tricks: Tricks | None = None,
    servers: int = 0,
    timeout_s: float = 60.0,
) -> list[Any]:
    """What `act` returns on each of `size` workers; `servers` processes more only serve, and return None."""

    def work(transport: Transport) -> Any:
        with Tables(transport=Carried(transport, kind), servers=servers) as tables:  # type: ignore[arg-type]
            return act(tables) if tables.is_worker else None

    return run_workers(size + servers, work, timeout_s=timeout_s, tricks=tricks)[:size]


class Straggler:
    """Computes for a time that a seed decides: now and then one worker takes many times as long as usual."""

    def __init__(self, seed: int, rank: int, usual: int = 200) -> None:
        self._random, self._usual = random.Random(seed * 1009 + rank), usual

    def compute(self) -> None:
        is_slow = self._random.random() < 0.1
        x = 1.0
        for _ in range(self._random.randrange(self._usual * (30 if is_slow else 1))):
            x = x * 0.5 + 1.0


def drained(table: Table) -> torch.Tensor:
    """All of a table when everybody's updates of the clocks up to this worker's are in; ends with the same on all."""
    return table.get(staleness=0)
