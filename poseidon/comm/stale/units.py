"""Units as tables: what a net's exchanges offer becomes updates of tables, and values of tables become parameters.

    FlatTable    a dense unit (SERVER): its elements one behind the other, num_elems × 1. The table of an Embed layer
                 keeps its rows: of its gradient those travel that a batch has read
    SliceTable   the weight of a fully-connected layer (FACTOR_SERVER): slices along the larger of its two dimensions.
                 An update goes to each server as factors, that dimension's cut to its slices; values come dense

A bias that rides on such a weight is a small FlatTable beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.comm.exchange import DenseExchange, Exchange, Wiring
from poseidon.comm.factors import FactorExchange, FactorLayout
from poseidon.comm.part import Member, Part, flat, regions_within
from poseidon.comm.stale.cache import Cache
from poseidon.comm.stale.forms import factors_payload, rows_payload
from poseidon.comm.stale.layout import TableSpec
from poseidon.comm.stale.message import Form, Kind, Message, as_bytes
from poseidon.errors import PlanError
from poseidon.plan import Send


@dataclass(frozen=True, slots=True)
class Segment:
    """Elements [start, stop) of a table that belong to a parameter."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Moment:
    """When an update is made: the clock it belongs to, the solver's iteration and its rate."""

    clock: int
    iteration: int
    rate: float


class UnitTable(ABC):
    """A table that holds some of a unit's parameters; `cache` is this worker's copy."""

    def __init__(self, spec: TableSpec, members: Sequence[Member]) -> None:
        self.spec, self.members = spec, list(members)
        self.cache = Cache(spec)
        self.installed = [0] * len(spec.spans)  # by part: the version that is in the parameters

    @abstractmethod
    def segments(self) -> list[Segment]: ...

    @abstractmethod
    def lay_out(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors shaped like the members, as the table has them; a copy in host memory."""

    @abstractmethod
    def put(self, rows: Tensor, first: int, tensors: Sequence[Tensor]) -> None:
        """Copies rows of the table, from `first` on, into tensors shaped like the members."""

    def values(self) -> Tensor:
        """The parameters as they are now."""
        return self.lay_out([member.value for member in self.members])

    def install(self) -> None:
        """New values go into the parameters. Under the hub's lock."""
        targets = [member.value for member in self.members]
        for part, span in enumerate(self.spec.spans):
            if self.installed[part] != self.cache.versions[part]:
                self.put(self.cache.values[span.first : span.last], span.first, targets)
                self.installed[part] = int(self.cache.versions[part])

    def _delta(self, part: int, moment: Moment, payload: Tensor, form: Form = Form.DENSE, count: int = 0) -> Message:
        index = self.spec.index
        return Message(Kind.DELTA, index, part, moment.clock, moment.iteration, form, count, True, moment.rate, payload)


class FlatTable(UnitTable):
    def segments(self) -> list[Segment]:
        first = self.members[0].offset
        return [
            Segment(member.name, member.offset - first, member.offset - first + member.num_elems)
            for member in self.members
        ]

    def lay_out(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([flat(tensor.detach()).cpu() for tensor in tensors])

    def put(self, rows: Tensor, first: int, tensors: Sequence[Tensor]) -> None:
        start = self.members[0].offset + first * self.spec.width
        elements = rows.view(-1)
        for member, region in regions_within(self.members, start, start + len(elements)):
            place = member.offset + region.start - start
            target = region.of(tensors[self.members.index(member)])
            target.copy_(elements[place : place + region.stop - region.start])

    def deltas(self, gradient: Tensor, moment: Moment) -> Iterator[Message]:
        """`gradient`: all elements, in memory that nobody writes to any more."""
        width = self.spec.width
        for part, span in enumerate(self.spec.spans):
            own = gradient[span.first * width : span.last * width]
            touched = _touched(own.view(-1, width)) if width > 1 else None
            if touched is None:
                yield self._delta(part, moment, as_bytes(own))
            else:
                payload = rows_payload(touched, own.view(-1, width)[touched])
                yield self._delta(part, moment, payload, Form.ROWS, len(touched))


def _touched(rows: Tensor) -> Tensor | None:
    """Numbers of the rows that are not all zeros; None if it is shorter to send all."""
    numbers = (rows != 0).any(1).nonzero()[:, 0]
    row_bytes = rows.shape[1] * rows.element_size()
    return numbers if len(numbers) * (4 + row_bytes) < len(rows) * row_bytes else None


class SliceTable(UnitTable):
    """`axis`: the weight's axis along which slices run."""

    def __init__(self, spec: TableSpec, members: Sequence[Member], axis: int) -> None:
        super().__init__(spec, members)
        self._axis = axis

    def segments(self) -> list[Segment]:
        return [Segment(self.members[0].name, 0, self.spec.num_rows * self.spec.width)]

    def lay_out(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].detach().cpu().movedim(self._axis, 0).contiguous()

    def put(self, rows: Tensor, first: int, tensors: Sequence[Tensor]) -> None:
        target = tensors[0].narrow(self._axis, first, len(rows))
        target.copy_(rows if self._axis == 0 else rows.t())

    def deltas(self, cut: Tensor, whole: Tensor, moment: Moment) -> Iterator[Message]:
        for part, span in enumerate(self.spec.spans):
            payload = factors_payload(cut[:, span.first : span.last], whole)
            yield self._delta(part, moment, payload, Form.FACTORS, len(cut))


# -- exchanges --------------------------------------------------------------------------------------------------------
class _TableExchange(Exchange):
    """What the taps see of a unit; its scheduler sends what was offered."""

    def begin(self, send: Send) -> None:
        raise PlanError(f"{self} is kept in tables and takes part in no collective")

    def reduced(self, send: Send, token: None) -> list[Part]:
        raise PlanError(f"{self} is kept in tables and takes part in no collective")

    @abstractmethod
    def tables(self) -> list[UnitTable]: ...

    @abstractmethod
    def updates(self, moment: Moment) -> Iterator[tuple[int, Message]]:
        """What was offered, as messages to servers."""


class TableDense(DenseExchange, _TableExchange):
    def __init__(self, wiring: Wiring, table: FlatTable) -> None:
        super().__init__(wiring)
        self._table = table

    def tables(self) -> list[UnitTable]:
        return [self._table]

    def updates(self, moment: Moment) -> Iterator[tuple[int, Message]]:
        gradient = self.memory(Send(self.unit.index, 0, self.num_elems)).cpu()
        if len(self.members) > 1:
            gradient = gradient.clone()  # the bucket is filled again while this is still read
        for delta in self._table.deltas(gradient, moment):
            yield self._table.spec.spans[delta.part].owner, delta


class TableFactors(FactorExchange, _TableExchange):
    def __init__(self, wiring: Wiring, layout: FactorLayout, weight: SliceTable, biases: FlatTable | None) -> None:
        super().__init__(wiring, layout)
        self._weight, self._biases = weight, biases

    def tables(self) -> list[UnitTable]:
        return [self._weight] if self._biases is None else [self._weight, self._biases]

    def updates(self, moment: Moment) -> Iterator[tuple[int, Message]]:
        rows = self.final().memory
        u, v = self.only.u(rows).cpu(), self.only.v(rows).cpu()
        cut, whole = (u, v) if cuts_outputs(self.only.num_outputs, self.only.num_inputs) else (v, u)
        for delta in self._weight.deltas(cut, whole, moment):
            yield self._weight.spec.spans[delta.part].owner, delta
        if self._biases is not None:
            for delta in self._biases.deltas(u.sum(0), moment):
                yield self._biases.spec.spans[delta.part].owner, delta


def cuts_outputs(num_outputs: int, num_inputs: int) -> bool:
    """Slices run along the larger dimension; of equal ones, the outputs."""
    return num_outputs >= num_inputs
