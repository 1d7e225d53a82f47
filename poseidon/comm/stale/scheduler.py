"""StaleScheduler: a net's units as tables of bounded staleness. What the taps and the solver's updates see is the same
as of other schedulers (`comm/conductor.py`).

    ready(unit)     the unit's gradients go to its servers as the update of its clock; its clock goes on
    wait(unit)      before a layer reads parameters: the newest values that are here, which contain every update up to
                    clock − s − 1 (waits for that), are taken over, once per clock: between a layer's forward and
                    backward pass parameters do not change
    drain()         waits for all updates below the clock, everybody's: with all workers at one clock, as before tests
                    and snapshots, all have the same values then

Updates that are under way are told of as they leave and come back (`under_way.py`).

Every unit has a clock of its own, so nothing waits for anything but what it reads. Servers sum the gradients of a clock
in the order of workers, when all have come, and apply the solver's rule: values are those of a number of whole clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from poseidon.comm.conductor import Conductor, Progress
from poseidon.comm.events import CommListener, SendStarted, UnitRead, UnitReady, WaitEnded, WaitStarted
from poseidon.comm.exchange import Exchange
from poseidon.comm.part import Part
from poseidon.comm.stale.hub import Hub
from poseidon.comm.stale.message import Kind, Message
from poseidon.comm.stale.protocol import Mode, version_needed
from poseidon.comm.stale.under_way import UnderWay
from poseidon.comm.stale.units import Moment, TableDense, TableFactors, UnitTable
from poseidon.errors import PlanError
from poseidon.plan import CommPlan


class Context(Protocol):
    """What an iteration is started with."""

    @property
    def iteration(self) -> int: ...

    @property
    def rate(self) -> float: ...


@dataclass(slots=True)
class _Unit(Progress):
    tables: list[UnitTable] = field(default_factory=list)
    clock: int = 0
    read_at: int = -1  # the clock at which values were last taken over
    asked: int = 0  # the latest version that was asked for


class StaleScheduler(Conductor[_Unit]):
    """`exchanges` are TableDense and TableFactors; their tables are known to the hub."""

    def __init__(
        self, plan: CommPlan, exchanges: Sequence[Exchange], hub: Hub, staleness: int, listener: CommListener | None
    ) -> None:
        units = {}
        for exchange in exchanges:
            assert isinstance(exchange, (TableDense, TableFactors))
            units[exchange.unit.index] = _Unit(exchange, tables=exchange.tables())
        super().__init__(plan, units, _nobody, listener)
        self._hub, self._staleness = hub, staleness
        parts = {unit: (entry.exchange.sends, entry.tables) for unit, entry in units.items()}
        self._under_way = UnderWay(hub, parts, self._tell)
        self.staleness_seen = 0  # by how many clocks the oldest values are behind that the last iteration has read
        self._seen_at = -1  # the clock of that iteration

    # -- compute thread ---------------------------------------------------------------------------------------------
    def ready(self, unit: int, context: Context) -> None:
        entry = self._units[unit]
        exchange = entry.exchange
        assert isinstance(exchange, (TableDense, TableFactors))
        self._tell(UnitReady(unit))
        for send in exchange.sends:
            self._tell(SendStarted(unit, send))
        self._post(unit, entry.clock, list(exchange.updates(Moment(entry.clock, context.iteration, context.rate))))
        exchange.drop()
        entry.clock += 1

    def _post(self, unit: int, clock: int, updates: Sequence[tuple[int, Message]]) -> None:
        def act() -> None:
            self._under_way.begin(unit, clock)
            for server, update in updates:
                self._hub.send((server,), update)
            self._under_way.handed_over(unit, [(server, update.table) for server, update in updates])

        self._hub.soon(act)

    def wait(self, unit: int) -> None:
        entry = self._units[unit]
        if entry.read_at != entry.clock:
            self._read(unit, entry, self._staleness)

    def drain(self) -> None:
        for unit, entry in self._units.items():
            self._read(unit, entry, 0)

    def _read(self, unit: int, entry: _Unit, staleness: int) -> None:
        """Takes over what is here, when it is no staler than this."""
        hub, need = self._hub, version_needed(entry.clock, staleness)
        with hub.lock:
            is_here = self._version(entry) >= need
        if not is_here:
            self._tell(WaitStarted(unit))
            self._ask(entry, staleness)
            hub.wait_for(lambda: self._version(entry) >= need, str(entry.exchange))
            self._tell(WaitEnded(unit))
        with hub.lock:
            version = self._version(entry)
            for table in entry.tables:
                table.install()
        entry.read_at = entry.clock
        seen = entry.clock - version
        self.staleness_seen = max(seen, self.staleness_seen) if self._seen_at == entry.clock else seen
        self._seen_at = entry.clock
        self._tell(UnitRead(unit, entry.clock, version))

    def _version(self, entry: _Unit) -> int:
        return min(int(table.cache.versions.min()) for table in entry.tables)

    def _ask(self, entry: _Unit, staleness: int) -> None:
        """Where values do not come by themselves: for those of all units, not only of the one that is waited for. Else
        the wire would stand still from one unit's answer to the next one's question."""
        reads = []
        for other in self._units.values():
            need = version_needed(other.clock, staleness)
            if other.asked < need:
                other.asked = need
                reads += self._reads([table for table in other.tables if table.spec.mode is Mode.PULL], need)
        self._hub.post(reads)

    def _reads(self, tables: Sequence[UnitTable], need: int) -> list[tuple[int, Message]]:
        """What asks servers for the parts that are older than needed."""
        return [
            (span.owner, Message(Kind.READ, table.spec.index, part, need))
            for table in tables
            for part, span in enumerate(table.spec.spans)
            if table.cache.versions[part] < need
        ]

    # -- the rest of a conductor ------------------------------------------------------------------------------------
    def begin_anew(self) -> None:
        """Other values were put into parameters and tables, at the clocks where everybody stands."""
        for entry in self._units.values():
            entry.read_at = entry.clock

    @property
    def clocks(self) -> dict[int, int]:
        """By unit."""
        return {unit: entry.clock for unit, entry in self._units.items()}

    def release(self) -> None:
        raise PlanError(
            "under staleness nothing waits for all gradients: servers apply the rule to each part by itself"
        )

    def close(self) -> None:
        """The hub's owner ends it."""

    def _is_reduced(self, progress: _Unit) -> bool:
        return True

    def _held(self) -> list[Part]:
        return []

    def _abort(self, exchange: Exchange, reason: str) -> None:
        self._hub.transport.abort(reason)


def _nobody(parts: Sequence[Part], context: Any) -> None:
    raise AssertionError("servers apply the rule")
