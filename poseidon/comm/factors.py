"""FACTORS: sufficient factor broadcasting for a fully-connected layer.

Each worker has K rows of u (K × M) and v (K × N) with ∂loss/∂W = uᵀ v. They are gathered from all workers, in one Send
or in several of some rows each, and one product over the P·K rows, in an order that is the same everywhere and by as
many threads (`threads.py`), gives everybody the same sum, the bias's among them (the sum of u's rows).

K is agreed beforehand: the rows of all layers that share the weight, over all passes of an iteration. A worker that has
fewer (a Filter before the layer, a pass that did not reach it) fills up with zeros, which add nothing. Where workers
have parts of a batch that differ in length, so do their rows (`rows_by_rank`): each Send carries the same fraction of
everybody's.

u and v lie side by side, M + N elements a row, so that any rows of a worker are one run of memory; products read them
there. The rows of all workers have memory of their own, made once: passes write into it, messages arrive in it, and
nothing is copied together. New memory for every iteration costs more than the copies do (VGG-19 on 8 emulated hosts:
0.29 s of each worker's iteration in the kernel instead of 0.19, by page faults).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from poseidon.comm.exchange import Exchange, Wiring
from poseidon.comm.part import Member, Part
from poseidon.comm.threads import Threads
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
    """Factors of an iteration: K rows of u and v side by side; the first `num_rows` are filled."""

    memory: Tensor
    u: Tensor
    v: Tensor
    num_rows: int = 0


class FactorExchange(Exchange):
    """Base of the schemes that move factors: collects them over the backward passes of an iteration.

    Member 0 is the weight, member 1 the bias if it learns and follows from the same factors. `rows_by_rank` is K of
    every worker, the same on all; it may be changed when nothing is on its way. `threads` rebuild what every worker
    needs the same bits of.
    """

    def __init__(self, wiring: Wiring, layout: FactorLayout, threads: Threads | None = None) -> None:
        super().__init__(wiring)
        self.layout = layout
        self.threads = threads or Threads.here()
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
            final.memory[final.num_rows :] = 0
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
        return self.layout.num_rows * self.width * element_bytes

    @property
    def width(self) -> int:
        """Elements of a row: of u, of v, and whatever else a scheme sends along."""
        return self.num_outputs + self.num_inputs

    def final(self) -> Collected:
        """All rows of this iteration."""
        assert self._final is not None, "the weight is offered before its unit begins"
        return self._final

    def sums(self, rows: Tensor) -> list[Part]:
        """The sums over all workers, from the rows of all, in rank order."""
        u, v, *_ = self._sides(rows)
        weight, *bias = self.members
        with self.threads.alike():
            grad = self.product(v, u) if self.layout.transposed else self.product(u, v)
            parts = [Part(weight, weight.whole, grad.view(-1))]
            parts += [Part(member, member.whole, u.sum(0)) for member in bias]
        return parts

    def _room(self) -> Collected:
        return self._collected(self._new_rows(self.num_rows))

    def _collected(self, memory: Tensor) -> Collected:
        u, v, *_ = self._sides(memory)
        return Collected(memory, u, v)

    def _sides(self, rows: Tensor) -> tuple[Tensor, ...]:
        rest = self.width - self.num_outputs - self.num_inputs
        sides: tuple[Tensor, ...] = rows.split((self.num_outputs, self.num_inputs, rest), 1)
        return sides

    def _new_rows(self, number: int) -> Tensor:
        return self.members[0].value.new_empty(number, self.width)


class Factors(FactorExchange):
    """A Send gathers some of the rows; with the last to arrive comes the sum."""

    def __init__(self, wiring: Wiring, layout: FactorLayout, threads: Threads | None = None) -> None:
        super().__init__(wiring, layout, threads)
        self._kept: Tensor | None = None
        self._arriving = threading.Lock()  # guards the next
        self._num_arrived = 0

    @property
    def _everybodys(self) -> Tensor:
        """The rows of all workers, in rank order."""
        number = sum(self.rows_by_rank)
        if self._kept is None or len(self._kept) != number:
            self._kept = self._new_rows(number)
        return self._kept

    def _own(self) -> Tensor:
        own: Tensor = self._everybodys.split(self.rows_by_rank)[self.transport.rank]
        return own

    def _room(self) -> Collected:
        """Passes may come before the iteration before is over: those have memory of their own."""
        return super()._room() if self._final is not None else self._collected(self._own())

    def offer(self, member: Member, grad: Tensor | None) -> None:
        super().offer(member, grad)
        if member is self.members[0]:
            final, own = self.final(), self._own()
            if final.memory.data_ptr() != own.data_ptr():
                own.copy_(final.memory)
                self._final = self._collected(own)
                self._final.num_rows = final.num_rows

    def begin(self, send: Send) -> Work:
        blocks = []
        for rank, rows in enumerate(self._everybodys.split(self.rows_by_rank)):
            first, last = self.rows_of(send, rank)
            blocks.append(rows[first:last].view(-1))
        return all_gather(self.transport, blocks, tag=self.tag(send))

    def arrive(self, send: Send, token: Work) -> bool:
        token.wait()
        return True

    def reduced(self, send: Send, token: Work) -> list[Part]:
        with self._arriving:
            self._num_arrived += 1
            if self._num_arrived < len(self.sends):
                return []
            self._num_arrived = 0
        return self.sums(self._everybodys)

    def rows_of(self, send: Send, rank: int) -> tuple[int, int]:
        """Which of a worker's rows a Send carries."""
        planned, own = self.layout.num_rows, self.rows_by_rank[rank]
        first, last = send.rows(self.num_elems, planned)
        return first * own // planned, last * own // planned
