"""FreeFactors: FACTORS where nobody promises how many rows there will be, nor that factors are all there is.

A net of Caffe's fixes its batch; a PyTorch model may get a smaller last batch, a larger one, or read a weight besides
in a way that gives a dense gradient. Each worker sends room for the K rows of the plan, filled up with zeros, each with
one element more: a flag that says whether this is all. Where any worker's is raised, everybody goes on with the dense
gradient of this iteration, summed by its owners in rank order and handed out: dearer, and exact all the same.
"""

from __future__ import annotations

from torch import Tensor

from poseidon.comm.exchange import Wiring
from poseidon.comm.factors import FactorLayout, Factors
from poseidon.comm.part import Member, Part
from poseidon.comm.threads import Threads
from poseidon.plan import Send
from poseidon.transport.collectives import all_gather, reduce_shards, shards_of

_PUSH, _PULL = 1, 2  # channel 0 carries factors
_ALL, _SHORT, _DENSE = 0, 1, 2  # flags: factors are all; there were more rows than room; a dense gradient besides


class FreeFactors(Factors):
    """Two counts, on all workers alike, tell whether factors are worth it. Each rises by one in an iteration that had
    to go on with the dense gradient for this reason, and falls by one in any other:

    num_short   some worker had more rows than there is room for: a plan with more room would do
    num_dense   some worker had a dense gradient besides its factors: no plan would

    Sums come multiplied by `scale`: on K rows of u that costs next to nothing, on a weight's gradient a pass over it.
    """

    def __init__(self, wiring: Wiring, layout: FactorLayout, threads: Threads | None = None) -> None:
        super().__init__(wiring, layout, threads)
        self.num_short = self.num_dense = 0
        self.scale = 1.0
        self._offered: set[str] = set()
        self._coming_flag = _ALL
        self._coming_dense: dict[str, Tensor] = {}
        self._final_dense: dict[str, Tensor] = {}

    def tap(self, u: Tensor, v: Tensor) -> None:
        num_taken = 0 if self._coming is None else self._coming.num_rows
        if num_taken + len(u) <= self.layout.num_rows:
            super().tap(u, v)
            return
        self._coming_flag = max(self._coming_flag, _SHORT)
        weight, *bias = self.members
        self._add_dense(weight, self.product(u.to(weight.value.dtype), v.to(weight.value.dtype)))
        for member in bias:
            self._add_dense(member, u.sum(0))

    def offer(self, member: Member, grad: Tensor | None) -> None:
        if grad is not None:
            self._coming_flag = _DENSE
            self._add_dense(member, grad)
        super().offer(member, None)
        self._offered.add(member.name)
        if len(self._offered) == len(self.members):
            self._offered.clear()
            self._final_dense, self._coming_dense = self._coming_dense, {}
            self.final().memory[:, -1] = self._coming_flag
            self._coming_flag = _ALL

    @property
    def width(self) -> int:
        return super().width + 1

    def sums(self, rows: Tensor) -> list[Part]:
        flags = set(map(int, rows[:, -1].unique().tolist()))
        self.num_short = _tallied(self.num_short, _SHORT in flags)
        self.num_dense = _tallied(self.num_dense, _DENSE in flags)
        if flags != {_ALL}:
            return self._reduced_dense(self.sends[-1])
        if self.scale != 1.0:
            rows[:, : self.num_outputs] *= self.scale
        return super().sums(rows)

    def drop(self) -> None:
        super().drop()
        self._final_dense = {}

    def discard(self) -> None:
        super().discard()
        self._coming_dense = {}
        self._coming_flag = _ALL

    def _add_dense(self, member: Member, grad: Tensor) -> None:
        found = self._coming_dense.get(member.name)
        grad = grad.to(member.value.dtype)
        self._coming_dense[member.name] = grad if found is None else found + grad

    def _reduced_dense(self, send: Send) -> list[Part]:
        final = self.final()
        rows = final.u[: final.num_rows], final.v[: final.num_rows]
        elements = self.members[0].value.new_zeros(self.num_elems)
        for member in self.members:
            own = elements[member.offset : member.offset + member.num_elems]
            is_weight = member is self.members[0]
            if final.num_rows:
                own += self.product(*rows).reshape(-1) if is_weight else rows[0].sum(0)
            if member.name in self._final_dense:
                own += self._final_dense[member.name].reshape(-1)
        shards = shards_of(elements, self.transport.size)
        reduce_shards(self.transport, shards, tag=self.tag(send, _PUSH)).wait()
        all_gather(self.transport, shards, tag=self.tag(send, _PULL)).wait()
        elements *= self.scale
        return [
            Part(member, member.whole, elements[member.offset : member.offset + member.num_elems])
            for member in self.members
        ]


def _tallied(count: int, rises: bool) -> int:
    return count + 1 if rises else max(0, count - 1)
