"""Several workers in one process, each with its Parallel; and one worker that sees all their batches, as the oracle."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from poseidon.parallel import Parallel
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers

SIZE = 2
BATCH = 3


def small(seed: int = 0) -> nn.Module:
    """Features → two hidden layers → five classes; weights from numpy, in double precision."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 5)).double()
    return filled(model, seed)


def filled(model: nn.Module, seed: int = 0) -> nn.Module:
    draw = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(draw.standard_normal(tuple(parameter.shape)) / 3))
    return model


def batch(step: int, rank: int, size: int = BATCH, width: int = 6) -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng((step, rank, 7))
    return torch.from_numpy(draw.standard_normal((size, width))), torch.from_numpy(draw.integers(0, 5, size))


def loss_of(model: nn.Module, step: int, rank: int, size: int = BATCH) -> Tensor:
    x, y = batch(step, rank, size)
    return F.cross_entropy(model(x), y)


@dataclass(frozen=True, slots=True)
class Member:
    """One of the team."""

    model: Parallel
    rank: int
    size: int

    def loss(self, step: int) -> Tensor:
        return loss_of(self.model, step, self.rank)


def in_team(
    act: Callable[[Member], Any],
    model: nn.Module | None = None,
    *,
    size: int = SIZE,
    prepare: Callable[[nn.Module], Any] = lambda model: None,
    **options: Any,
) -> list[Any]:
    """What `act` returns on each worker; all start from copies of one model, each prepared by itself."""
    base = small() if model is None else model

    def work(transport: Transport) -> Any:
        own = copy.deepcopy(base)
        prepare(own)
        parallel = Parallel(own, transport=transport, **{"bandwidth": "100mbit", **options})
        try:
            found = act(Member(parallel, transport.rank, transport.size))
            transport.barrier(30.0)  # nobody leaves while another still needs it
            return found
        finally:
            parallel.close()

    return run_workers(size, work, timeout_s=60)


def values(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def grads(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]


def alone(
    steps: int, make: Callable[[Any], torch.optim.Optimizer], model: nn.Module | None = None, size: int = SIZE
) -> list[Tensor]:
    """The parameters after training on the mean of all workers' losses."""
    model = copy.deepcopy(small() if model is None else model)
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        (sum(loss_of(model, step, rank) for rank in range(size)) / size).backward()
        optimizer.step()
    return values(model)


def mean_grads(losses: Callable[[nn.Module, int], Tensor], model: nn.Module | None = None, size: int = SIZE) -> Any:
    """The gradients of the mean over ranks of `losses(model, rank)`."""
    model = copy.deepcopy(small() if model is None else model)
    (sum(losses(model, rank) for rank in range(size)) / size).backward()
    return grads(model)


def assert_same(found: Sequence[Any], expected: Sequence[Any], rtol: float = 1e-10) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            torch.testing.assert_close(one, other, rtol=rtol, atol=1e-12)
