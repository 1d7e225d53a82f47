"""FACTORS: sufficient factor broadcasting for a fully-connected layer.

Each worker has K rows of u (K × M) and v (K × N) with ∂loss/∂W = uᵀ v. They are gathered from all workers, in rank
order, and one product over the P·K rows gives everybody the same sum, the bias's among them (the sum of u's rows).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from poseidon.comm.exchange import Exchange, Wiring
from poseidon.comm.part import Member, Part
from poseidon.plan import Send
from poseidon.transport import Work
from poseidon.transport.collectives import all_gather


def _product(a: Tensor, b: Tensor) -> Tensor:
    return a.t() @ b


class FactorExchange(Exchange):
    """Base of the schemes that move factors: collects them over the backward passes of an iteration.

    Member 0 is the weight, member 1 the bias if it learns. `transposed`: the weight is stored N × M.
    """

    def __init__(self, wiring: Wiring, *, transposed: bool) -> None:
        super().__init__(wiring)
        self.transposed = transposed
        # aᵀ b: how sums over rows of factors are rebuilt. A benchmark that stands in for a GPU exchanges it.
        self.product: Callable[[Tensor, Tensor], Tensor] = _product
        rows, columns = self.members[0].parameter.shape
        self.num_outputs, self.num_inputs = (columns, rows) if transposed else (rows, columns)
        self._tapped: list[tuple[Tensor, Tensor]] = []

    def tap(self, u: Tensor, v: Tensor) -> None:
        """Takes the factors of one backward pass through one layer; they are copied."""
        dtype = self.members[0].parameter.dtype
        self._tapped.append((u.to(dtype, copy=True), v.to(dtype, copy=True)))

    def offer(self, member: Member, grad: Tensor | None) -> None:
        """Nothing: the gradient came as factors."""

    def take(self) -> tuple[Tensor, Tensor]:
        """All rows of this iteration: u (K × M) and v (K × N)."""
        us, vs = zip(*self._tapped, strict=True)
        self._tapped = []
        return (us[0], vs[0]) if len(us) == 1 else (torch.cat(us), torch.cat(vs))


class Factors(FactorExchange):
    def begin(self, send: Send) -> tuple[list[Tensor], Work]:
        u, v = self.take()
        mine = torch.cat((u.reshape(-1), v.reshape(-1)))
        blocks = [torch.empty_like(mine) for _ in range(self.transport.size)]
        blocks[self.transport.rank] = mine
        return blocks, all_gather(self.transport, blocks, tag=self.tag(send))

    def reduced(self, send: Send, token: tuple[list[Tensor], Work]) -> list[Part]:
        blocks, work = token
        work.wait()
        num_rows = blocks[0].numel() // (self.num_outputs + self.num_inputs)
        cut = num_rows * self.num_outputs
        u = torch.cat([block[:cut].view(num_rows, self.num_outputs) for block in blocks])
        v = torch.cat([block[cut:].view(num_rows, self.num_inputs) for block in blocks])
        weight, *bias = self.members
        grad = self.product(v, u) if self.transposed else self.product(u, v)
        parts = [Part(weight, weight.whole, grad.view(-1))]
        parts += [Part(member, member.whole, u.sum(0)) for member in bias]
        return parts
