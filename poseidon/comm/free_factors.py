"""FreeFactors: FACTORS where nobody promises how many rows there will be, nor that factors are all there is.

A net of Caffe's fixes its batch; a PyTorch model may get a smaller last batch, a larger one, or read a weight besides
in a way that gives a dense gradient. Each worker sends room for the K rows of the plan, filled up with zeros, each with
one element more for every weight: in the first row that is a flag, which says whether this is all. Where any worker's
is raised, everybody goes on with that weight's dense gradient of this iteration, summed by its owners in rank order and
handed out: dearer, and exact all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.comm.exchange import Wiring
from poseidon.comm.factors import Factored, FactorLayout, Factors
from poseidon.comm.part import Member, Part
from poseidon.comm.threads import Threads
from poseidon.plan import Send
from poseidon.transport.collectives import all_gather, reduce_shards, shards_of

_PUSH, _PULL = 1, 2  # channel 0 carries factors
_ALL, _SHORT, _DENSE = 0, 1, 2  # flags: factors are all; there were more rows than room; a dense gradient besides


@dataclass(slots=True)
class Tally:
    """Two counts, on all workers alike, tell whether a weight's factors are worth it. Each rises by one in an iteration
    that had to go on with the dense gradient for this reason, and falls by one in any other:

    num_short   some worker had more rows than there is room for: a plan with more room would do
    num_dense   some worker had a dense gradient besides its factors: no plan would
    """

    num_short: int = 0
    num_dense: int = 0

    def count(self, *, is_short: bool, is_dense: bool) -> None:
        self.num_short = self.num_short + 1 if is_short else max(0, self.num_short - 1)
        self.num_dense = self.num_dense + 1 if is_dense else max(0, self.num_dense - 1)


class FreeFactors(Factors):
    """`tallies` are by weight. Sums come multiplied by `scale`, which is set before what it is for is handed over: on
    the way of K rows of u into the memory they are sent from that costs nothing, on the gradient of a weight a pass
    over it."""

    def __init__(self, wiring: Wiring, layout: FactorLayout, threads: Threads | None = None) -> None:
        super().__init__(wiring, layout, threads)
        self.tallies = {factored.weight.name: Tally() for factored in self.weights}
        self.scale = 1.0
        self._offered: set[str] = set()
        self._coming_flags: dict[str, int] = {}
        self._coming_dense: dict[str, Tensor] = {}
        self._final_dense: dict[str, Tensor] = {}
        self._final_scale = 1.0

    def tap(self, factored: Factored, u: Tensor, v: Tensor) -> None:
        weight = factored.weight
        num_taken = 0 if self._coming is None else self._coming.num_rows.get(weight.name, 0)
        if num_taken + len(u) <= self.layout.num_rows:
            super().tap(factored, u, v)
            return
        self._raise_flag(factored, _SHORT)
        self._add_dense(weight, self.product(u.to(weight.value.dtype), v.to(weight.value.dtype)))
        for member in factored.biases:
            self._add_dense(member, u.sum(0))

    def offer(self, member: Member, grad: Tensor | None) -> None:
        if grad is not None:
            self._raise_flag(self.factored(member.name), _DENSE)
            self._add_dense(member, grad)
        super().offer(member, None)
        self._offered.add(member.name)
        if len(self._offered) == len(self.members):
            self._offered.clear()
            self._final_dense, self._coming_dense = self._coming_dense, {}
            self._final_scale = self.scale
            flags = self._flags(self.final().memory)[0]
            flags.zero_()
            for number, factored in enumerate(self.weights):
                if factored.weight.name in self._coming_flags:
                    flags[number] = self._coming_flags[factored.weight.name]
            self._coming_flags = {}

    @property
    def width(self) -> int:
        return super().width + len(self.weights)

    def sums(self, rows: Tensor) -> list[Part]:
        dense = self._tallied(self._flags(rows))
        factors = [factored for factored in self.weights if factored not in dense]
        with self.threads.alike():
            parts = [part for factored in factors for part in self.sums_of(factored, rows)]
        return parts + self._reduced_dense(dense, self.sends[-1]) if dense else parts

    def _put(self, place: Tensor, u: Tensor) -> None:
        if u.dtype == place.dtype:
            torch.mul(u, self.scale, out=place)
        else:  # in the wider type
            place.copy_(u).mul_(self.scale)

    def drop(self) -> None:
        super().drop()
        self._final_dense = {}

    def discard(self) -> None:
        super().discard()
        self._coming_dense = {}
        self._coming_flags = {}

    def forget(self, factored: Factored) -> None:
        super().forget(factored)
        self._coming_flags.pop(factored.weight.name, None)
        for member in factored.members:
            self._coming_dense.pop(member.name, None)

    # -- flags ------------------------------------------------------------------------------------------------------
    def _flags(self, rows: Tensor) -> Tensor:
        """A column for each weight, a row for each worker: there the first of its K rows has them."""
        return rows[:: self.layout.num_rows, -len(self.weights) :]

    def _raise_flag(self, factored: Factored, flag: int) -> None:
        name = factored.weight.name
        self._coming_flags[name] = max(flag, self._coming_flags.get(name, _ALL))

    def _tallied(self, flags: Tensor) -> list[Factored]:
        """Counts what all workers' flags say; the weights that go on with their dense gradients."""
        columns = list(zip(*flags.tolist(), strict=True))
        short, dense = ([flag in column for column in columns] for flag in (_SHORT, _DENSE))
        found = []
        for factored, is_short, is_dense in zip(self.weights, short, dense, strict=True):
            self.tallies[factored.weight.name].count(is_short=is_short, is_dense=is_dense)
            if is_short or is_dense:
                found.append(factored)
        return found

    # -- dense gradients --------------------------------------------------------------------------------------------
    def _add_dense(self, member: Member, grad: Tensor) -> None:
        found = self._coming_dense.get(member.name)
        grad = grad.to(member.value.dtype)
        self._coming_dense[member.name] = grad if found is None else found + grad

    def _reduced_dense(self, weights: Sequence[Factored], send: Send) -> list[Part]:
        """The sums of these weights' gradients, which all workers exchange together."""
        members = [member for factored in weights for member in factored.members]
        elements = members[0].value.new_zeros(sum(member.num_elems for member in members))
        places = elements.split([member.num_elems for member in members])
        for place, grad in zip(places, self._own_dense(weights), strict=True):
            place += grad
        shards = shards_of(elements, self.transport.size)
        reduce_shards(self.transport, shards, tag=self.tag(send, _PUSH)).wait()
        all_gather(self.transport, shards, tag=self.tag(send, _PULL)).wait()
        return [Part(member, member.whole, place) for member, place in zip(members, places, strict=True)]

    def _own_dense(self, weights: Sequence[Factored]) -> Iterator[Tensor]:
        """This worker's gradients of the weights' members, scaled: what its factors give, which are so already, and
        what came besides."""
        final = self.final()
        for factored in weights:
            rows = final.memory[: final.num_rows.get(factored.weight.name, 0)]
            u, v = factored.u(rows), factored.v(rows)
            for member in factored.members:
                grad = member.value.new_zeros(member.num_elems)
                if len(rows):
                    grad += self.product(u, v).reshape(-1) if member is factored.weight else u.sum(0)
                if member.name in self._final_dense:
                    grad.add_(self._final_dense[member.name].reshape(-1), alpha=self._final_scale)
                yield grad
