"""FACTOR_SERVER: factors are pushed to the owners of slices of the weight; updated slices are pulled dense.

The weight's gradient is uᵀ v. Let L be the larger of its two dimensions (of equal ones the outputs) and S the smaller.
Owner q holds the q-th slice of the L-axis: from every worker it needs the factor of that axis cut to its slice
(K × L/P) and the whole factor of the other axis (K × S). It sums over all P·K rows in rank order, applies the rule to
its slice, and sends the slice's new values to everybody. The bias follows from u alone: where u is the cut factor it is
sliced with it; where u is whole, every worker has all of it and updates the bias itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.comm.factors import FactorExchange
from poseidon.comm.part import Part, Region
from poseidon.comm.server import owned
from poseidon.plan import Send
from poseidon.transport import Work
from poseidon.transport.collectives import all_gather, exchange_slices

_WHOLE, _CUT, _PULL, _PULL_BIAS = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class _Push:
    """By rank: the cut factors of this worker's slice and the whole ones, each as one axis; and what brings them."""

    cut: list[Tensor]
    whole: list[Tensor]
    num_rows: int
    works: tuple[Work, Work]


class FactorServer(FactorExchange):
    @property
    def _cuts_outputs(self) -> bool:
        """True if slices run along the outputs (u is cut), false if along the inputs (v is)."""
        return self.num_outputs >= self.num_inputs

    @property
    def _axis(self) -> int:
        """The weight's axis along which slices run."""
        return int(self._cuts_outputs == self.transposed)

    def _slice(self, owner: int) -> tuple[int, int]:
        return owned(0, max(self.num_outputs, self.num_inputs), owner, self.transport.size)

    def begin(self, send: Send) -> _Push:
        transport = self.transport
        u, v = self.take()
        cut, whole = (u, v) if self._cuts_outputs else (v, u)
        outgoing = [cut[:, slice(*self._slice(owner))].reshape(-1) for owner in range(transport.size)]
        incoming = [torch.empty_like(outgoing[transport.rank]) for _ in range(transport.size)]
        wholes = [whole.new_empty(whole.numel()) for _ in range(transport.size)]
        wholes[transport.rank] = whole.reshape(-1)
        works = (
            all_gather(transport, wholes, tag=self.tag(send, _WHOLE)),
            exchange_slices(transport, outgoing, incoming, tag=self.tag(send, _CUT)),
        )
        return _Push(incoming, wholes, len(cut), works)

    def reduced(self, send: Send, token: _Push) -> list[Part]:
        for work in token.works:
            work.wait()
        first, last = self._slice(self.transport.rank)
        cut = torch.cat([part.view(token.num_rows, last - first) for part in token.cut])
        whole = torch.cat([part.view(token.num_rows, -1) for part in token.whole])
        weight, *bias = self.members
        grad = self.product(cut, whole) if self._axis == 0 else self.product(whole, cut)
        parts = [Part(weight, Region(first, last, self._axis), grad, everywhere=False)]
        for member in bias:
            if self._cuts_outputs:
                parts.append(Part(member, Region(first, last), cut.sum(0), everywhere=False))
            else:
                parts.append(Part(member, member.whole, whole.sum(0)))
        return [part for part in parts if part.grad.numel()]

    def spread(self, send: Send) -> None:
        transport = self.transport
        weight, *bias = self.members
        slices = [Region(*self._slice(owner), self._axis).of(weight.value) for owner in range(transport.size)]
        # Slices of rows lie in one piece of the parameter and arrive there; slices of columns come by a copy.
        blocks = [part.reshape(-1) if self._axis == 0 else torch.empty_like(part).view(-1) for part in slices]
        if self._axis == 1:
            blocks[transport.rank] = slices[transport.rank].reshape(-1)
        works = [all_gather(transport, blocks, tag=self.tag(send, _PULL))]
        if self._cuts_outputs:
            for member in bias:
                pieces = [Region(*self._slice(owner)).of(member.value) for owner in range(transport.size)]
                works.append(all_gather(transport, pieces, tag=self.tag(send, _PULL_BIAS)))
        for work in works:
            work.wait()
        if self._axis == 1:
            for part, block in zip(slices, blocks, strict=True):
                part.copy_(block.view(part.shape))
