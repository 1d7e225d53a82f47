"""FACTOR_SERVER: factors are pushed to the owners of slices of the weight; updated slices are pulled dense.

The weight's gradient is uᵀ v. Let L be the larger of its two dimensions (of equal ones the outputs) and S the smaller.
A Send is a slab of slices along the L-axis, dealt out over the workers. From every worker an owner needs the factor of
that axis cut to its slices (K × L/P) and the whole factor of the other axis (K × S), which goes with the unit's first
Send. It sums over all P·K rows in rank order, applies the rule to its slices, and sends their new values to everybody:
over a narrow wire their change (`narrow.py`).

The bias follows from u alone. Where u is cut, the bias's elements go with their slices; where u is whole, every worker
has all of it and updates the bias itself, with the last Send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.comm.exchange import Wiring
from poseidon.comm.factors import FactorExchange, FactorLayout
from poseidon.comm.narrow import ErrorFeedback
from poseidon.comm.part import Member, Part, Region
from poseidon.comm.server import owned
from poseidon.comm.threads import Threads
from poseidon.plan import Send
from poseidon.transport import Work
from poseidon.transport.collectives import all_gather, exchange_slices

_WHOLE, _CUT, _PULL, _PULL_BIAS = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Rows of all workers, in rank order, one behind the other; and what brings them."""

    rows: Tensor
    work: Work


@dataclass(frozen=True, slots=True)
class _Pull:
    """By owner: slices of the parameter, and what comes for them."""

    views: list[Tensor]
    blocks: list[Tensor]
    work: Work


class FactorServer(FactorExchange):
    """`narrow` is what pulled values cross the network as; None: as they are."""

    def __init__(
        self,
        wiring: Wiring,
        layout: FactorLayout,
        narrow: torch.dtype | None = None,
        threads: Threads | None = None,
    ) -> None:
        super().__init__(wiring, layout, threads)
        like = self.members[0].value
        self._errors = None if narrow is None else ErrorFeedback(narrow, self.num_elems, like)
        self._whole: _Gathered | None = None
        self._shared: dict[tuple[str, Region], Tensor] = {}

    # -- who owns what ----------------------------------------------------------------------------------------------
    @property
    def _cuts_outputs(self) -> bool:
        """True if slices run along the outputs (u is cut), false if along the inputs (v is)."""
        return self.only.num_outputs >= self.only.num_inputs

    @property
    def _axis(self) -> int:
        """The weight's axis along which slices run."""
        return int(self._cuts_outputs == self.only.transposed)

    @property
    def _sliced(self) -> list[Member]:
        """The members that have owners: the weight, and the bias where its elements go with the slices."""
        return self.members if self._cuts_outputs else self.members[:1]

    def _slices(self, send: Send, owner: int) -> tuple[int, int]:
        """The owner's slices in a Send's slab; what a Send has beyond the weight's elements is bias."""
        sides = (self.only.num_outputs, self.only.num_inputs)
        num_slices, slice_elems = max(sides), min(sides)
        first = min(send.start // slice_elems, num_slices)
        last = num_slices if self._is_last(send) else min(send.stop // slice_elems, num_slices)
        return owned(first, last, owner, self.transport.size)

    def _is_last(self, send: Send) -> bool:
        return send.stop == self.num_elems

    def _region(self, send: Send, owner: int, member: Member) -> Region:
        return Region(*self._slices(send, owner), self._axis if member is self.members[0] else None)

    def shards(self, owner: int) -> list[tuple[Member, Region]]:
        found = [(member, self._region(send, owner, member)) for send in self.sends for member in self._sliced]
        return [(member, region) for member, region in found if region.start < region.stop]

    # -- push -------------------------------------------------------------------------------------------------------
    def begin(self, send: Send) -> _Gathered:
        size, rows = self.transport.size, self.final().memory
        u, v = self.only.u(rows), self.only.v(rows)
        cut, whole = (u, v) if self._cuts_outputs else (v, u)
        if send.start == 0:
            self._whole = self._gather_whole(whole, send)
        outgoing = [_in_one_piece(cut[:, slice(*self._slices(send, owner))]) for owner in range(size)]
        first, last = self._slices(send, self.transport.rank)
        rows = cut.new_empty(sum(self.rows_by_rank), last - first)
        work = exchange_slices(self.transport, outgoing, self._by_rank(rows), tag=self.tag(send, _CUT))
        return _Gathered(rows, work)

    def _by_rank(self, rows: Tensor) -> list[Tensor]:
        """Every worker's part of gathered rows, as messages."""
        return [part.view(-1) for part in rows.split(self.rows_by_rank)]

    def _gather_whole(self, mine: Tensor, send: Send) -> _Gathered:
        rows = mine.new_empty(sum(self.rows_by_rank), mine.shape[1])
        blocks = self._by_rank(rows)
        blocks[self.transport.rank].copy_(mine.reshape(-1))
        return _Gathered(rows, all_gather(self.transport, blocks, tag=self.tag(send, _WHOLE)))

    def arrive(self, send: Send, token: _Gathered) -> bool:
        assert self._whole is not None, "a unit's first Send begins first"
        self._whole.work.wait()
        token.work.wait()
        return True

    def reduced(self, send: Send, token: _Gathered) -> list[Part]:
        assert self._whole is not None, "a unit's first Send begins first"
        parts = []
        for member in self._sliced if token.rows.numel() else ():
            region = self._region(send, self.transport.rank, member)
            parts.append(Part(member, region, self._gradient(member, token.rows, self._whole.rows), everywhere=False))
            if self._errors is not None:
                place = self._place(member, region)
                self._shared[member.name, region] = self._errors.to_true(region.of(member.value), place)
        if self._is_last(send) and not self._cuts_outputs:
            with self.threads.alike():
                parts += [Part(member, member.whole, self._whole.rows.sum(0)) for member in self.members[1:]]
        return parts

    def _gradient(self, member: Member, cut: Tensor, whole: Tensor) -> Tensor:
        if member is not self.members[0]:
            return cut.sum(0)
        return self.product(cut, whole) if self._axis == 0 else self.product(whole, cut)

    def drop(self) -> None:
        super().drop()
        self._whole = None

    # -- pull -------------------------------------------------------------------------------------------------------
    def spread(self, send: Send) -> None:
        channels = zip(self._sliced, (_PULL, _PULL_BIAS), strict=False)
        pulls = [self._start_pull(member, send, self.tag(send, channel)) for member, channel in channels]
        for pull in pulls:
            pull.work.wait()
            for view, block in zip(pull.views, pull.blocks, strict=True):
                if self._errors is not None:
                    view.add_(block.view(view.shape))
                elif not view.is_contiguous():
                    view.copy_(block.view(view.shape))

    def _start_pull(self, member: Member, send: Send, tag: int) -> _Pull:
        regions = [self._region(send, owner, member) for owner in range(self.transport.size)]
        views = [region.of(member.value) for region in regions]
        blocks = [self._arriving(view) for view in views]
        rank = self.transport.rank
        blocks[rank] = self._leaving(member, regions[rank], views[rank])
        return _Pull(views, blocks, all_gather(self.transport, blocks, tag=tag))

    def _arriving(self, view: Tensor) -> Tensor:
        """Where slices arrive: in the parameter itself where they lie in one piece and come as they are."""
        if self._errors is not None:
            return view.new_empty(view.numel(), dtype=self._errors.dtype)
        return view.view(-1) if view.is_contiguous() else view.new_empty(view.numel())

    def _leaving(self, member: Member, region: Region, view: Tensor) -> Tensor:
        if self._errors is None:
            return _in_one_piece(view)
        if not view.numel():
            return self._arriving(view)
        return self._errors.to_shared(view, self._shared.pop((member.name, region)), self._place(member, region))

    # -- over a narrow wire -----------------------------------------------------------------------------------------
    def _place(self, member: Member, region: Region) -> int:
        """Where a region's errors stand among the unit's: slice by slice, then the bias."""
        slice_elems = 1 if region.axis is None else min(self.only.num_outputs, self.only.num_inputs)
        return member.offset + region.start * slice_elems

    def state(self) -> dict[str, Tensor]:
        return {} if self._errors is None else self._errors.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if self._errors is not None:
            self._errors.restore(state)


def _in_one_piece(part: Tensor) -> Tensor:
    """The elements of a part of a matrix as a message: as they lie if they can, else a copy."""
    return part.contiguous().view(-1)
