"""FACTORS: sufficient factor broadcasting for fully-connected layers.

Each worker has K rows of u (K × M) and v (K × N) with ∂loss/∂W = uᵀ v. They are gathered from all workers, in one Send
or in several of some rows each, and one product over the P·K rows, in an order that is the same everywhere and by as
many threads (`threads.py`), gives everybody the same sum, the bias's among them (the sum of u's rows).

K is agreed beforehand: the rows of all layers that share the weight, over all passes of an iteration. A worker that has
fewer (a Filter before the layer, a pass that did not reach it) fills up with zeros, which add nothing. Where workers
have parts of a batch that differ in length, so do their rows (`rows_by_rank`): each Send carries the same fraction of
everybody's.

u and v lie side by side, M + N elements a row, so that any rows of a worker are one run of memory; products read them
there. So do those of several weights with as many rows, if the plan has put them together: a row then has u and v of
each, one weight behind the other, and what are small messages apart is one. The rows of all workers have memory of
their own, made once: passes write into it, messages arrive in it, and nothing is copied together. New memory for every
iteration costs more than the copies do (VGG-19 on 8 emulated hosts: 0.29 s of each worker's iteration in the kernel
instead of 0.19, by page faults).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor, nn

from poseidon.comm.exchange import Exchange, Gathering, Wiring
from poseidon.comm.part import Member, Part
from poseidon.comm.threads import Threads
from poseidon.errors import PlanError
from poseidon.plan import Send
from poseidon.transport.collectives import all_gather
from poseidon.transport.completion import Completion


def _product(a: Tensor, b: Tensor) -> Tensor:
    return a.t() @ b


@dataclass(frozen=True, slots=True)
class FactorLayout:
    """`num_rows` is K, as planned; `transposed`: the weights, by name, that are stored N × M."""

    num_rows: int
    transposed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Factored:
    """A weight of a unit, the biases that follow from its factors, and where these begin in a row: u, then v."""

    weight: Member
    biases: tuple[Member, ...]
    transposed: bool
    first: int

    @cached_property
    def members(self) -> tuple[Member, ...]:
        return (self.weight, *self.biases)

    @cached_property
    def num_outputs(self) -> int:
        return self.weight.parameter.shape[int(self.transposed)]

    @cached_property
    def num_inputs(self) -> int:
        return self.weight.parameter.shape[int(not self.transposed)]

    @property
    def width(self) -> int:
        return self.num_outputs + self.num_inputs

    def u(self, rows: Tensor) -> Tensor:
        return rows[:, self.first : self.first + self.num_outputs]

    def v(self, rows: Tensor) -> Tensor:
        return rows[:, self.first + self.num_outputs : self.first + self.width]

    def both(self, rows: Tensor) -> Tensor:
        return rows[:, self.first : self.first + self.width]


def factored_of(members: Sequence[Member], transposed: frozenset[str]) -> list[Factored]:
    """A unit's weights. A matrix begins one; a vector rides on the weight before it."""
    found: list[Factored] = []
    for member in members:
        if member.parameter.dim() == 2:
            first = found[-1].first + found[-1].width if found else 0
            found.append(Factored(member, (), member.name in transposed, first))
        else:
            last = found.pop()
            found.append(Factored(last.weight, (*last.biases, member), last.transposed, last.first))
    return found


@dataclass(slots=True)
class Collected:
    """Factors of an iteration: K rows; of each weight, by name, the first so many are filled."""

    memory: Tensor
    num_rows: dict[str, int] = field(default_factory=dict)


class FactorExchange(Exchange):
    """Base of the schemes that move factors: collects them over the backward passes of an iteration.

    `rows_by_rank` is K of every worker, the same on all; it may be changed when nothing is on its way. `threads`
    rebuild what every worker needs the same bits of.
    """

    def __init__(self, wiring: Wiring, layout: FactorLayout, threads: Threads | None = None) -> None:
        super().__init__(wiring)
        self.layout = layout
        self.weights = factored_of(self.members, layout.transposed)
        self.threads = threads or Threads.here()
        self.rows_by_rank = [layout.num_rows] * self.transport.size
        # aᵀ b: how sums over rows of factors are rebuilt. A benchmark that stands in for a GPU exchanges it.
        self.product: Callable[[Tensor, Tensor], Tensor] = _product
        self._of_member = {member.name: factored for factored in self.weights for member in factored.members}
        self._num_offered = 0  # weights, of this iteration
        self._coming: Collected | None = None  # filled by passes
        self._final: Collected | None = None  # complete, to be sent

    def factored(self, name: str) -> Factored:
        """The weight of this name, or on which the bias of this name rides."""
        return self._of_member[name]

    @property
    def only(self) -> Factored:
        """The weight of a scheme that takes one at a time."""
        (factored,) = self.weights
        return factored

    def follows(self, bias: nn.Parameter, weight: nn.Parameter) -> bool:
        """Whether a bias's gradient comes with the weight's factors."""
        return any(
            factored.weight.parameter is weight and any(member.parameter is bias for member in factored.biases)
            for factored in self.weights
        )

    def tap(self, factored: Factored, u: Tensor, v: Tensor) -> None:
        """Takes the factors of one backward pass through one layer; they are copied."""
        coming = self._coming = self._coming or self._room()
        first = coming.num_rows.get(factored.weight.name, 0)
        last = first + len(u)
        if last > self.num_rows:
            raise PlanError(
                f"{factored.weight.name} travels as factors of {self.num_rows} rows per worker and iteration, got "
                f"{last}: the batch of such a layer must not grow while training; give it the scheme ring"
            )
        rows = coming.memory[first:last]
        self._put(factored.u(rows), u)
        factored.v(rows).copy_(v)
        coming.num_rows[factored.weight.name] = last

    def _put(self, place: Tensor, u: Tensor) -> None:
        """Writes rows of u where they are sent from."""
        place.copy_(u)

    def offer(self, member: Member, grad: Tensor | None) -> None:
        """The gradient came as factors; with all weights' they are complete."""
        assert grad is None, f"{member.name} got a dense gradient beside its factors"
        if member is not self.factored(member.name).weight:
            return
        self._num_offered += 1
        if self._num_offered == len(self.weights):
            self._num_offered = 0
            final = self._coming or self._room()
            for factored in self.weights:
                filled = final.num_rows.get(factored.weight.name, 0)
                if filled < len(final.memory):
                    factored.both(final.memory)[filled:] = 0
            self._final, self._coming = final, None

    def drop(self) -> None:
        self._final = None

    def discard(self) -> None:
        self._coming = None

    def forget(self, factored: Factored) -> None:
        """Discards what passes have handed over of one weight."""
        if self._coming is not None:
            self._coming.num_rows.pop(factored.weight.name, None)

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
        """Elements of a row: of every u and v, and whatever else a scheme sends along."""
        return sum(factored.width for factored in self.weights)

    def final(self) -> Collected:
        """All rows of this iteration."""
        assert self._final is not None, "all weights are offered before their unit begins"
        return self._final

    def sums(self, rows: Tensor) -> list[Part]:
        """The sums over all workers, from the rows of all, in rank order."""
        with self.threads.alike():
            return [part for factored in self.weights for part in self.sums_of(factored, rows)]

    def sums_of(self, factored: Factored, rows: Tensor) -> list[Part]:
        u, v = factored.u(rows), factored.v(rows)
        grad = self.product(v, u) if factored.transposed else self.product(u, v)
        parts = [Part(factored.weight, factored.weight.whole, grad.view(-1))]
        return parts + [Part(member, member.whole, u.sum(0)) for member in factored.biases]

    def _room(self) -> Collected:
        return Collected(self._new_rows(self.num_rows))

    def _new_rows(self, number: int) -> Tensor:
        return self.members[0].value.new_empty(number, self.width)


class Factors(FactorExchange, Gathering):
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
        return super()._room() if self._final is not None else Collected(self._own())

    def offer(self, member: Member, grad: Tensor | None) -> None:
        before = self._final
        super().offer(member, grad)
        final = self._final
        if final is not None and final is not before:
            own = self._own()
            if final.memory.data_ptr() != own.data_ptr():
                own.copy_(final.memory)
                self._final = Collected(own, final.num_rows)

    def begin(self, send: Send) -> Completion:
        blocks = []
        for rank, rows in enumerate(self._everybodys.split(self.rows_by_rank)):
            first, last = self.rows_of(send, rank)
            blocks.append(rows[first:last].view(-1))
        return all_gather(self.transport, blocks, tag=self.tag(send))

    def arrival(self, token: Completion) -> Completion:
        return token

    def reduced(self, send: Send, token: Completion) -> list[Part]:
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
