"""POWER_SGD: the gradient of a matrix by its strongest directions (Vogels et al. 2019), asked for by name: it is lossy.

M is a worker's gradient (m × n) plus the error it still owes, Q (n × r) what the last iteration ended with:

    p = M Q, summed over workers, made orthonormal        q = Mᵀ p, summed over workers
    Σ M ≈ p qᵀ            error = M − p qᵀ / P            Q = q, for the next iteration

Sums are taken in rank order on all workers alike, and products by as many threads, so replicas keep the same bits. A
parameter with more than two axes is a matrix of its first axis by all others.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from poseidon.comm.exchange import Exchange, Wiring
from poseidon.comm.part import Member, Part
from poseidon.comm.threads import Threads
from poseidon.errors import SnapshotError
from poseidon.plan import Send
from poseidon.transport import Work
from poseidon.transport.collectives import all_gather

_LEFT, _RIGHT = 0, 1


class PowerSgd(Exchange):
    """Member 0 is the parameter; `rank` is r; `threads` compute what all workers need the same bits of."""

    def __init__(self, wiring: Wiring, rank: int, threads: Threads | None = None) -> None:
        super().__init__(wiring)
        self._threads = threads or Threads.here()
        value = self.members[0].value
        self._num_rows, self._num_columns = len(value), value.numel() // len(value)
        self._right = self._first_directions(rank)
        self._error: Tensor | None = None
        self._matrix: Tensor | None = None

    def _first_directions(self, rank: int) -> Tensor:
        """The same on all workers."""
        generator = torch.Generator().manual_seed(zlib.crc32(self.members[0].name.encode()))
        drawn = torch.randn(self._num_columns, rank, generator=generator, dtype=torch.float64)
        return drawn.to(self.members[0].value)

    def offer(self, member: Member, grad: Tensor | None) -> None:
        value = member.value
        own = torch.zeros_like(value) if grad is None else grad.to(value.dtype)
        matrix = own.reshape(self._num_rows, self._num_columns)
        self._matrix = matrix.clone() if self._error is None else matrix + self._error

    def begin(self, send: Send) -> tuple[list[Tensor], Work]:
        assert self._matrix is not None, "the parameter is offered before its unit begins"
        return self._gather(self._matrix @ self._right, send, _LEFT)

    def reduced(self, send: Send, token: tuple[list[Tensor], Work]) -> list[Part]:
        assert self._matrix is not None
        summed = self._summed(token, self._num_rows)
        with self._threads.alike():
            left = torch.linalg.qr(summed)[0]
        self._right = self._summed(self._gather(self._matrix.t() @ left, send, _RIGHT), self._num_columns)
        with self._threads.alike():
            total = left @ self._right.t()
        self._error = self._matrix.sub_(total, alpha=1 / self.transport.size)
        (member,) = self.members
        return [Part(member, member.whole, total.view(-1))]

    def drop(self) -> None:
        self._matrix = None

    def state(self) -> dict[str, Tensor]:
        return {} if self._error is None else {"error": self._error, "directions": self._right}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if not state:
            self._error = None
            return
        if state["error"].shape != (self._num_rows, self._num_columns) or state["directions"].shape != (
            self._right.shape
        ):
            raise SnapshotError(
                f"{self}: the saved errors are of shape {tuple(state['error'].shape)}, rank "
                f"{state['directions'].shape[1]}; expected {(self._num_rows, self._num_columns)}, rank "
                f"{self._right.shape[1]}: the model or powersgd_rank has changed"
            )
        self._error = state["error"].to(self._right).clone()
        self._right = state["directions"].to(self._right).clone()

    def _gather(self, own: Tensor, send: Send, channel: int) -> tuple[list[Tensor], Work]:
        mine = own.contiguous().view(-1)
        blocks = [torch.empty_like(mine) for _ in range(self.transport.size)]
        blocks[self.transport.rank] = mine
        return blocks, all_gather(self.transport, blocks, tag=self.tag(send, channel))

    def _summed(self, token: tuple[list[Tensor], Work], num_rows: int) -> Tensor:
        blocks, work = token
        work.wait()
        total = blocks[0].clone()
        for block in blocks[1:]:
            total += block
        return total.view(num_rows, -1)
