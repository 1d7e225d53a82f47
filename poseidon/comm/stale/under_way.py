"""UnderWay: updates that are on their way to servers and back, and what listeners hear of them.

    SendReduced   the last letter of an update has left this worker
    SendApplied   the values that are here contain it; with that the unit's exchange of that clock is over (UnitDone)

In managed mode an update leaves row by row, together with what later clocks add: there is no such moment, and both are
told when the values are here. Bytes are those of all letters about the unit's tables: its own updates, and the values
that this worker serves to others. Only the hub's thread comes here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from poseidon.comm.events import CommEvent, SendApplied, SendReduced, UnitDone
from poseidon.comm.stale.hub import Hub
from poseidon.comm.stale.units import UnitTable
from poseidon.plan import Send


@dataclass(slots=True)
class _Update:
    """What a unit's gradients of one clock have become. `num_leaving`: servers to which not all of it has left."""

    unit: int
    clock: int
    num_leaving: int = 0
    has_left: bool = False


@dataclass(slots=True)
class _Unit:
    sends: Sequence[Send]
    tables: Sequence[UnitTable]
    updates: deque[_Update] = field(default_factory=deque)
    told_bytes: int = 0


class UnderWay:
    """`units`: the Sends and the tables of each."""

    def __init__(
        self,
        hub: Hub,
        units: Mapping[int, tuple[Sequence[Send], Sequence[UnitTable]]],
        tell: Callable[[CommEvent], None],
    ) -> None:
        self._mailbox, self._rank, self._tell = hub.mailbox, hub.rank, tell
        self._units = {unit: _Unit(*parts) for unit, parts in units.items()}
        self._unit_of = {table.spec.index: unit for unit, (_, tables) in units.items() for table in tables}
        # By (server, table): with which letter, counted from the first, an update has left for it.
        self._leaving: dict[tuple[int, int], deque[tuple[int, _Update]]] = defaultdict(deque)
        hub.mailbox.left, hub.arrived = self._hear_left, self._hear_values

    def begin(self, unit: int, clock: int) -> None:
        """An update exists from now on."""
        self._units[unit].updates.append(_Update(unit, clock))
        self._end_those_that_are_in(unit)

    def handed_over(self, unit: int, where: Iterable[tuple[int, int]]) -> None:
        """The newest update's letters are made; `where`: their servers and tables."""
        updates = self._units[unit].updates
        if not updates:  # its values are here already
            return
        update, mailbox = updates[-1], self._mailbox
        for key in set(where):
            if key[0] != self._rank and mailbox.num_left[key] < mailbox.num_made[key]:
                self._leaving[key].append((mailbox.num_made[key], update))
                update.num_leaving += 1
        if update.num_leaving == 0:
            self._tell_left(update)

    def _hear_left(self, server: int, table: int) -> None:
        """A letter about a table has left. Letters to one rank about one table do so in the order they were made."""
        waiting = self._leaving.get((server, table))
        while waiting and waiting[0][0] <= self._mailbox.num_left[server, table]:
            _, update = waiting.popleft()
            update.num_leaving -= 1
            if update.num_leaving == 0:
                self._tell_left(update)

    def _hear_values(self, table: int) -> None:
        if table in self._unit_of:
            self._end_those_that_are_in(self._unit_of[table])

    def _end_those_that_are_in(self, unit: int) -> None:
        entry = self._units[unit]
        if not entry.updates:
            return
        version = min(int(table.cache.versions.min()) for table in entry.tables)
        while entry.updates and entry.updates[0].clock < version:
            update = entry.updates.popleft()
            if not update.has_left:
                self._tell_left(update)
            for send, num_bytes in self._newly_sent(entry):
                self._tell(SendApplied(unit, send, num_bytes))
            self._tell(UnitDone(unit))

    def _tell_left(self, update: _Update) -> None:
        if not update.has_left:
            update.has_left = True
            for send, num_bytes in self._newly_sent(self._units[update.unit]):
                self._tell(SendReduced(update.unit, send, num_bytes))

    def _newly_sent(self, entry: _Unit) -> Iterator[tuple[Send, int]]:
        """What has left for a unit since this was asked last, dealt out over its Sends."""
        total = sum(self._mailbox.sent_about[table.spec.index] for table in entry.tables)
        rest, entry.told_bytes = total - entry.told_bytes, total
        num_elems = sum(send.stop - send.start for send in entry.sends)
        for send in entry.sends:
            share = rest * (send.stop - send.start) // num_elems
            rest, num_elems = rest - share, num_elems - (send.stop - send.start)
            yield send, share
