"""Job: what a c10d transport and its subgroups share: peers, health, engine, groups, and words for what went wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from poseidon.errors import PeerLost, TransportError, TransportTimeout
from poseidon.transport.base import names_of
from poseidon.transport.engine import Engine
from poseidon.transport.groups import Groups, GroupSpec
from poseidon.transport.health import Health, HealthOptions
from poseidon.transport.joining import meet_peers, open_lines
from poseidon.transport.native import IS_BUILT
from poseidon.transport.vitals import VitalsSource, no_vitals

if TYPE_CHECKING:
    from poseidon.transport.messages import Messages

GRACE_S = 3.0  # for the news of who is lost to arrive, after a connection has broken
LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class C10dOptions:
    """`address`: this host's, on the interface that carries the traffic (`interface.py` finds it). `secret`: the
    job's, if it has one. `vitals` tells where this worker stands, for the others to see (`vitals.py`). `one_sided`:
    what carries notified puts (`onesided/`), "sockets" (shared memory inside a host) or "mpi". `is_native`: false
    leaves messages to gloo and puts to Python, although there is something better (`native/`)."""

    address: str
    secret: bytes = field(default=b"", repr=False)
    vitals: VitalsSource = no_vitals
    one_sided: str = "sockets"
    is_native: bool = IS_BUILT
    join_s: float = 120.0
    limit_s: float = 1800.0
    health: HealthOptions = field(default_factory=HealthOptions)


class Job:
    def __init__(self, store: dist.Store, rank: int, size: int, options: C10dOptions) -> None:
        self.rank, self.options, self.limit = rank, options, timedelta(seconds=options.limit_s)
        self.store = store  # kept: rank 0's is the server
        self.peers = meet_peers(store, rank, size, options.join_s, options.secret)
        lines = open_lines(store, rank, self.peers, options.address, options.join_s, options.secret)
        self.engine = Engine(f"transport-{rank}", options.limit_s)
        self.groups = Groups(store, options.address, options.join_s, options.limit_s)
        self.messages: Messages | None = None
        self.health = Health(rank, self.peers, lines, options.health, self._end_all, options.vitals)

    def group(self, spec: GroupSpec) -> Any:
        """A c10d group. To make it takes the other members; should one be lost meanwhile, that is raised."""
        if not self.groups.has(spec):
            making = self.engine.submit(object(), lambda: self.groups.get(spec), f"making group {spec.name}")
            while not making.ends_within(LOOK_S):
                self.check(making.what)
            making.wait()
        return self.groups.get(spec)

    def check(self, what: object) -> None:
        """Raises if somebody is lost: no operation is worth starting then."""
        if self.health.loss is not None:
            raise self.explain(str(what), (), "")

    def explain(self, what: str, ranks: tuple[int, ...], problem: str) -> TransportError:
        """The error of an operation with `ranks` that c10d ended with `problem`."""
        loss = self.health.cause(ranks, GRACE_S)
        if loss is not None:
            return PeerLost(f"{names_of(self.peers, loss.ranks)} {loss.reason}; while {what}", loss.ranks)
        if "imed out" in problem:
            return TransportTimeout(
                f"{what}: not over after {self.options.limit_s:g} s, although all workers give signs of life", ranks
            )
        return PeerLost(f"the connection to {names_of(self.peers, ranks)} broke: {problem}; while {what}", ranks)

    def _end_all(self) -> None:
        """Wakes everybody who waits. Not all of gloo's own waits end: a receive in the midst of a message does not."""
        self.engine.interrupt(lambda what: self.explain(what, (), ""))
        if self.messages is not None:
            self.messages.fail()
        self.groups.break_all()

    def close(self) -> None:
        self.health.close()
        if self.messages is not None:
            self.messages.close()
        self.groups.break_all()
        self.engine.close()
