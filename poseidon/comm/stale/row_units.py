"""Units in managed mode: every parameter is a lazy table of rows, to which each worker adds what its own rule gives.

    RowTable        a parameter, row i of the table its slice i along the first axis: an output of a fully-connected
                    layer, a filter of a convolution. A vector has rows of one element
    RowExchange     what the taps see of a unit: gradients come together as in any dense exchange
    RowScheduler    ready(unit): the rule is applied here, with this worker's own history (momentum); what it changes,
                    divided by the number of workers, is the update of the clock

For rules that are linear in the gradient (SGD, Nesterov) the updates of all workers add up to what one worker with the
whole batch would do, once all have arrived; for the others it is a mean of steps instead of a step of the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from poseidon.comm.events import CommListener, SendStarted, UnitReady
from poseidon.comm.exchange import DenseExchange, Wiring
from poseidon.comm.part import Apply, Member, Part
from poseidon.comm.stale.hub import Hub
from poseidon.comm.stale.layout import TableSpec
from poseidon.comm.stale.lazy import LazyTable, LazyUpdates
from poseidon.comm.stale.message import Message
from poseidon.comm.stale.protocol import version_needed
from poseidon.comm.stale.scheduler import StaleScheduler, _Unit
from poseidon.comm.stale.units import Moment, Segment, TableDense, UnitTable
from poseidon.plan import CommPlan, Send


def rows_and_width(shape: Sequence[int]) -> tuple[int, int]:
    """Of a parameter's table."""
    return (shape[0], prod(shape[1:])) if shape else (1, 1)


class RowTable(UnitTable):
    cache: LazyUpdates

    def __init__(self, hub: Hub, spec: TableSpec, member: Member) -> None:
        super().__init__(spec, [member])
        self.cache = LazyUpdates(spec)
        self.lazy = LazyTable(hub, self.cache)

    def segments(self) -> list[Segment]:
        return [Segment(self.members[0].name, 0, self.spec.num_rows * self.spec.width)]

    def lay_out(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].detach().cpu().reshape(self.spec.num_rows, self.spec.width).clone()

    def put(self, rows: Tensor, first: int, tensors: Sequence[Tensor]) -> None:
        target = tensors[0]
        part = target.narrow(0, first, len(rows)) if target.dim() else target
        part.copy_(rows.view(part.shape))

    def install(self) -> None:
        """Always: this worker's own updates are in at once."""
        self.put(self.cache.values, 0, [self.members[0].value])

    @torch.no_grad()
    def add(self, delta: Tensor) -> None:
        """This worker's update of a clock, shaped like the parameter. Under the hub's lock."""
        rows = delta.cpu().reshape(self.spec.num_rows, self.spec.width).to(self.spec.torch_dtype)
        moved = (rows != 0).any(1).nonzero()[:, 0]
        if len(moved) == len(rows):
            self.cache.add_all(rows)
        elif len(moved):
            self.cache.add(moved, rows[moved])
        self.cache.finish_clock()


class RowExchange(TableDense):
    def __init__(self, wiring: Wiring, tables: Sequence[RowTable]) -> None:
        DenseExchange.__init__(self, wiring)
        self.rows = list(tables)

    def tables(self) -> list[UnitTable]:
        return list(self.rows)

    def updates(self, moment: Moment) -> Iterator[tuple[int, Message]]:
        raise AssertionError("the scheduler adds to the tables of rows itself")

    def gradients(self) -> Iterator[Part]:
        memory = self.memory(Send(self.unit.index, 0, self.num_elems))
        for member in self.members:
            yield Part(member, member.whole, memory[member.offset : member.offset + member.num_elems])


class RowScheduler(StaleScheduler):
    """`apply`: the rule, with this worker's histories. `share`: what a worker's step counts for, 1 / P or 1.

    `ticked` is called once per iteration, for a budget that counts by clocks.
    """

    def __init__(
        self,
        plan: CommPlan,
        exchanges: Sequence[RowExchange],
        hub: Hub,
        staleness: int,
        listener: CommListener | None,
        *,
        apply: Apply,
        share: float,
        ticked: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(plan, exchanges, hub, staleness, listener)
        self._rule, self._share, self._ticked = apply, share, ticked
        self._first_unit = next(iter(self._units), None)

    @torch.no_grad()
    def ready(self, unit: int, context: Any) -> None:
        entry = self._units[unit]
        exchange = entry.exchange
        assert isinstance(exchange, RowExchange)
        self._tell(UnitReady(unit))
        for send in exchange.sends:
            self._tell(SendStarted(unit, send))
        self._hub.soon(partial(self._under_way.begin, unit, entry.clock))
        for table, part in zip(exchange.rows, exchange.gradients(), strict=True):
            before = part.member.value.clone()
            self._rule([part], context)
            delta = (part.member.value - before) * self._share
            with self._hub.lock:
                table.add(delta)
        exchange.drop()
        entry.clock += 1
        if unit == self._first_unit:
            self._hub.soon(self._ticked)
        self._flush(exchange, self._staleness)

    def drain(self) -> None:
        """Everything that waits leaves; then as ever."""
        for entry in self._units.values():
            assert isinstance(entry.exchange, RowExchange)
            self._flush(entry.exchange, 0)
        super().drain()

    def _flush(self, exchange: RowExchange, staleness: int) -> None:
        def flush() -> None:
            for table in exchange.rows:
                table.lazy.flush(staleness)

        self._hub.soon(flush)

    def _ask(self, entry: _Unit, staleness: int) -> None:
        """Values come when there is room for them; who waits for them asks."""
        reads = self._reads(entry.tables, version_needed(entry.clock, staleness))
        self._hub.post((owner, read) for owner, read in reads if owner != self._hub.rank)
