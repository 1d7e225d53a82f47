"""FACTORS: sufficient factor broadcasting for a fully-connected layer.

Each worker has K rows of u (K × M) and v (K × N) with ∂loss/∂W = uᵀ v. They are gathered from all workers, in one Send
or in several of some rows each, and one product over the P·K rows, in an order that is the same everywhere, gives
everybody the same sum, the bias's among them (the sum of u's rows).

K is agreed beforehand: the rows of all layers that share the weight, over all passes of an iteration. A worker that has
fewer (a Filter before the layer, a pass that did not reach it) fills up with zeros, which add nothing. Where workers
have parts of a batch that differ in length, so do their rows (`rows_by_rank`): each Send carries the same fraction of
everybody's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.comm.exchange import Exchange, Wiring
from poseidon.comm.part import Member, Part
from poseidon.errors import PlanError
from poseidon.plan import Send
from poseidon.transport import Work
from poseidon.transport.collectives import all_gather


def _product(a: Tensor, b: Tensor) -> Tensor:
    return a.t() @ b


@dataclass(frozen=True, slots=True)
class FactorLayout:
    """`num_rows` is K, as planned; `transposed`: the weight is stored N × M."""

    num_rows: int
    transposed: bool


@dataclass(slots=True)
class Collected:
    """Factors of an iteration: K rows of u, then K rows of v, in one run of memory; the first `num_rows` are filled."""

    memory: Tensor
    u: Tensor
    v: Tensor
    num_rows: int = 0


class FactorExchange(Exchange):
    """Base of the schemes that move factors: collects them over the backward passes of an iteration.

    Member 0 is the weight, member 1 the bias if it learns and follows from the same factors. `rows_by_rank` is K of
    every worker, the same on all; it may be changed when nothing is on its way.
    """

    def __init__(self, wiring: Wiring, layout: FactorLayout) -> None:
        super().__init__(wiring)
        self.layout = layout
        self.rows_by_rank = [layout.num_rows] * self.transport.size
        # aᵀ b: how sums over rows of factors are rebuilt. A benchmark that stands in for a GPU exchanges it.
        self.product: Callable[[Tensor, Tensor], Tensor] = _product
        rows, columns = self.members[0].parameter.shape
        self.num_outputs, self.num_inputs = (columns, rows) if layout.transposed else (rows, columns)
        self._coming: Collected | None = None  # filled by passes
        self._final: Collected | None = None  # complete, to be sent

    def tap(self, u: Tensor, v: Tensor) -> None:
        """Takes the factors of one backward pass through one layer; they are copied."""
        coming = self._coming = self._coming or self._room()
        first, last = coming.num_rows, coming.num_rows + len(u)
        if last > self.num_rows:
            raise PlanError(
                f"{self} travels as factors of {self.num_rows} rows per worker and iteration, got {last}: the "
                "batch of such a layer must not grow while training; give it the scheme ring"
            )
        coming.u[first:last] = u
        coming.v[first:last] = v
        coming.num_rows = last

    def offer(self, member: Member, grad: Tensor | None) -> None:
        """The gradient came as factors; with the weight's they are complete."""
        assert grad is None, f"{member.name} got a dense gradient beside its factors"
        if member is self.members[0]:
            final = self._coming or self._room()
            final.u[final.num_rows :] = 0
            final.v[final.num_rows :] = 0
            self._final, self._coming = final, None

    def drop(self) -> None:
        self._final = None

    def discard(self) -> None:
        self._coming = None

    @property
    def num_rows(self) -> int:
        """This worker's K."""
        return self.rows_by_rank[self.transport.rank]

    @property
    def block_bytes(self) -> int:
        """What one worker's factors of an iteration take, as planned."""
        element_bytes: int = self.members[0].parameter.element_size()
        return self.layout.num_rows * (self.num_outputs + self.num_inputs) * element_bytes

    def final(self) -> Collected:
        """All rows of this iteration."""
        assert self._final is not None, "the weight is offered before its unit begins"
        return self._final

    def _room(self) -> Collected:
        num_rows = self.num_rows
        memory = self.members[0].value.new_empty(num_rows * (self.num_outputs + self.num_inputs))
        u, v = memory.split((num_rows * self.num_outputs, num_rows * self.num_inputs))
        return Collected(memory, u.view(num_rows, self.num_outputs), v.view(num_rows, self.num_inputs))


class Factors(FactorExchange):
    """A Send gathers some of the rows; with the last to arrive comes the sum."""

    def __init__(self, wiring: Wiring, layout: FactorLayout) -> None:
        super().__init__(wiring, layout)
        self._arriving = threading.Lock()  # guards the next
        self._gathered: dict[Send, list[Tensor]] = {}

    def begin(self, send: Send) -> tuple[list[Tensor], Work]:
        mine = self.block(send)
        own = self._elems(send, self.transport.rank)
        extra = len(mine) - own  # a flag, of whoever derives from this
        blocks = [mine.new_empty(self._elems(send, rank) + extra) for rank in range(self.transport.size)]
        blocks[self.transport.rank] = mine
        return blocks, all_gather(self.transport, blocks, tag=self.tag(send))

    def arrive(self, send: Send, token: tuple[list[Tensor], Work]) -> bool:
        token[1].wait()
        return True

    def reduced(self, send: Send, token: tuple[list[Tensor], Work]) -> list[Part]:
        blocks, _ = token
        with self._arriving:
            self._gathered[send] = blocks
            if len(self._gathered) < len(self.sends):
                return []
            gathered, self._gathered = self._gathered, {}
        return self.summed([gathered[send] for send in self.sends])

    def block(self, send: Send) -> Tensor:
        """This worker's part of a Send: its rows of u, then those of v, in one run of memory."""
        final = self.final()
        first, last = self.rows_of(send, self.transport.rank)
        if last - first == self.num_rows:
            return final.memory
        return torch.cat((final.u[first:last].reshape(-1), final.v[first:last].reshape(-1)))

    def rows_of(self, send: Send, rank: int) -> tuple[int, int]:
        """Which of a worker's rows a Send carries."""
        planned, own = self.layout.num_rows, self.rows_by_rank[rank]
        first, last = send.rows(self.num_elems, planned)
        return first * own // planned, last * own // planned

    def _elems(self, send: Send, rank: int) -> int:
        first, last = self.rows_of(send, rank)
        return (last - first) * (self.num_outputs + self.num_inputs)

    def summed(self, gathered: Sequence[Sequence[Tensor]]) -> list[Part]:
        """The sums over all workers, from what each Send has gathered: everybody's block of it, in rank order."""
        u_rows, v_rows = [], []
        for rank in range(self.transport.size):
            for send, blocks in zip(self.sends, gathered, strict=True):
                first, last = self.rows_of(send, rank)
                sizes = (last - first) * self.num_outputs, (last - first) * self.num_inputs
                u, v = blocks[rank][: sum(sizes)].split(sizes)
                u_rows.append(u.view(-1, self.num_outputs))
                v_rows.append(v.view(-1, self.num_inputs))
        u, v = torch.cat(u_rows), torch.cat(v_rows)
        weight, *bias = self.members
        grad = self.product(v, u) if self.layout.transposed else self.product(u, v)
        parts = [Part(weight, weight.whole, grad.view(-1))]
        parts += [Part(member, member.whole, u.sum(0)) for member in bias]
        return parts
