"""Stale synchronous parallel, as pure state machines: no memory, no network, no threads. Everything that can go wrong
with order is decided here, and checked by trying all orders (tests/comm/stale/test_protocol.py).

A worker's *clock* counts what it has finished. What it adds to a table between two clocks is its update of the clock
it is at: with clock c it makes update c. A server holds *parts* of tables; each has a *version*:

    version v     every worker's updates 0 … v − 1 are in

With staleness s a worker at clock c may read a part iff

    v ≥ c − s           that is: every update up to c − s − 1 is in, possibly more

and blocks for nothing else. Nobody can be further ahead of the slowest worker than that: at clock k a paused worker
lets the parts come to version k at most, and the others read at k + s for the last time: they stop with clock
k + s + 1.

How updates enter is the table's choice:

    WHOLE_CLOCKS   when everybody's update of a clock is there, in the order of workers: with s = 0 the bits do not
                   depend on any arrival. A part contains exactly the updates below its version
    ON_ARRIVAL     at once: readers may see more than the version says. A worker's update may come in several messages

A worker that leaves is waited for no longer; what it has sent is not lost.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from poseidon.errors import TransportError


class Entry(enum.Enum):
    """When updates enter a part."""

    WHOLE_CLOCKS = "whole clocks"
    ON_ARRIVAL = "on arrival"


class Mode(enum.Enum):
    """How values come to workers. The value is how people write it."""

    PULL = "ssp"  # a worker asks when what it has is too old
    PUSH = "ssp-push"  # a server sends them whenever a version is made
    MANAGED = "ssp-managed"  # as PUSH, and updates enter on arrival, many of them before the clock


@dataclass(frozen=True, slots=True)
class Pull:
    """A worker waits for a version."""

    worker: int
    need: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a table at its server. `clocks`: of every worker how many updates have come completely."""

    clocks: tuple[int, ...]
    version: int = 0
    gone: frozenset[int] = frozenset()
    waiting: tuple[Pull, ...] = ()

    @property
    def reachable(self) -> int:
        """The version that what has come is enough for."""
        present = [clock for worker, clock in enumerate(self.clocks) if worker not in self.gone]
        return min(present) if present else max(self.clocks)

    @property
    def is_behind(self) -> bool:
        """A clock is complete, and its version is not made yet."""
        return self.version < self.reachable


def new_part(num_workers: int, version: int = 0) -> Part:
    return Part((version,) * num_workers, version)


def update_arrived(part: Part, worker: int, clock: int) -> Part:
    """All of a worker's update of a clock is there. Updates of one worker come in order, each once."""
    if worker in part.gone or clock != part.clocks[worker]:
        raise TransportError(
            f"worker {worker}'s update of clock {clock} came "
            f"{'after it had left' if worker in part.gone else f'where that of clock {part.clocks[worker]} was due'}",
            (worker,),
        )
    return replace(part, clocks=tuple(own + (rank == worker) for rank, own in enumerate(part.clocks)))


def version_made(part: Part) -> tuple[Part, tuple[int, ...]]:
    """The next version is in memory. Also whose pulls it answers."""
    assert part.is_behind, "a version is made of a complete clock"
    version = part.version + 1
    answered = tuple(pull.worker for pull in part.waiting if pull.need <= version)
    waiting = tuple(pull for pull in part.waiting if pull.need > version)
    return replace(part, version=version, waiting=waiting), answered


def pulled(part: Part, worker: int, need: int) -> tuple[Part, bool]:
    """A worker asks for a version; true if it can be answered at once."""
    if part.version >= need:
        return part, True
    return replace(part, waiting=(*part.waiting, Pull(worker, need))), False


def worker_left(part: Part, worker: int) -> Part:
    """A worker has sent its last update, and waits for nothing."""
    waiting = tuple(pull for pull in part.waiting if pull.worker != worker)
    return replace(part, gone=part.gone | {worker}, waiting=waiting)


# -- workers ----------------------------------------------------------------------------------------------------------
def version_needed(clock: int, staleness: int) -> int:
    """What a worker at a clock must find in all that it reads."""
    return max(0, clock - staleness)
