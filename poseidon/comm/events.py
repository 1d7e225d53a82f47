"""What the scheduler tells whoever listens, in the order things happen on this worker. Times are the listener's affair.

    UnitReady → (SendStarted → [SendLeft →] SendReduced → SendApplied)+ → UnitDone     of each, in every iteration
    WaitStarted → WaitEnded                                                    where the compute thread had to wait
    UnitRead                                                                   under staleness, of every unit

Events come from several threads; one listener is never called by two of them at once. `sent_bytes` is payload that has
really left this worker for the Send since the event before that told of it: as its transport has counted it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from poseidon.plan import Send


@dataclass(frozen=True, slots=True)
class CommEvent:
    """Base of all events; `unit` is the index in the plan."""

    unit: int


@dataclass(frozen=True, slots=True)
class UnitReady(CommEvent):
    """Every member's gradient is final."""


@dataclass(frozen=True, slots=True)
class SendStarted(CommEvent):
    send: Send


@dataclass(frozen=True, slots=True)
class SendLeft(CommEvent):
    """Others have the link: all is here that its sum is made of. Where it is not told, SendReduced says so."""

    send: Send


@dataclass(frozen=True, slots=True)
class SendReduced(CommEvent):
    """The sum over all workers is here. Under staleness: this worker's update has left for its servers."""

    send: Send
    sent_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class SendApplied(CommEvent):
    """The rule was applied, and values that other workers updated are in. Under staleness: those with this update."""

    send: Send
    sent_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class UnitDone(CommEvent):
    """All of the unit's parameters are up to date: the next forward pass may read them."""


@dataclass(frozen=True, slots=True)
class WaitStarted(CommEvent):
    """Somebody needs the unit, and it is still on its way."""


@dataclass(frozen=True, slots=True)
class WaitEnded(CommEvent):
    """It has come."""


@dataclass(frozen=True, slots=True)
class UnitRead(CommEvent):
    """Under staleness: a worker at this clock takes over values that contain all updates below `version`."""

    clock: int
    version: int


CommListener = Callable[[CommEvent], None]
