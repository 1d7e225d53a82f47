"""What bench/parallel.py trains: PyTorch models of real size whose products take a GPU's time instead of a CPU's.

Parameters, gradients, factors and rows are real tensors and really travel; so are their copies, sums and scalings.
Multiplications and the optimizer's arithmetic are a sleep (`lab_device.py`), for all contenders alike: `pace` puts
stand-ins into torch for them. Convolutions and attention are paced as a whole, by `Timed`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poseidon.parallel.forwards
import poseidon.parallel.planning
from bench.lab_device import PacedDevice
from bench.lab_nets import GPU_FLOPS, GPU_UPDATE_ELEMS
from poseidon.comm import factors


class Gpu(PacedDevice):
    """One that multiplies at a set rate."""

    flops = GPU_FLOPS

    def seconds(self, multiplications: float) -> float:
        return 2 * multiplications / self.flops


DEVICE = Gpu()
BATCH = 32


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        DEVICE.run(_seconds(x, weight))
        return _nothing(x, *x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        DEVICE.run(_seconds(x, weight) * (1 + ctx.needs_input_grad[0]))
        own = _nothing(x, *x.shape) if ctx.needs_input_grad[0] else None
        return own, torch.zeros_like(weight), weight.new_zeros(len(weight)) if ctx.has_bias else None


def _nothing(like: Tensor, *shape: int) -> Tensor:
    """Zeros that take no memory: a GPU's activations would not be in the host's."""
    return like.new_zeros(()).expand(shape)


def _seconds(x: Tensor, weight: Tensor) -> float:
    return DEVICE.seconds((x.numel() // x.shape[-1]) * weight.numel())


def _input_grad(grad: Tensor, weight: Tensor) -> Tensor:
    DEVICE.run(_seconds(grad, weight))
    return _nothing(grad, *grad.shape[:-1], weight.shape[1])


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A gradient that only the GPU sees: nothing is written into the host's memory, and nobody reads it."""
    DEVICE.run(DEVICE.seconds(a.shape[0] * a.shape[1] * b.shape[1]))
    return torch.empty(a.shape[1], b.shape[1])


def _step(optimizer: Any, closure: Any = None) -> None:
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    DEVICE.run(sum(g.values().numel() if g.is_sparse else g.numel() for g in grads) / GPU_UPDATE_ELEMS)


def pace(flops: float) -> None:
    """Puts the stand-ins in place, in this process, before models are built."""
    DEVICE.flops = flops
    F.linear = lambda x, weight, bias=None: _Linear.apply(x, weight, bias)  # type: ignore[assignment]
    poseidon.parallel.forwards.input_grad = _input_grad
    factors._product = _product
    poseidon.parallel.planning.product_flops = lambda *_: flops  # what the planner would measure on that GPU
    torch.optim.SGD.step = _step  # type: ignore[method-assign]


class _Timed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float, *params: Tensor) -> Tensor:
        ctx.seconds, ctx.params = seconds, params
        DEVICE.run(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        DEVICE.run(2 * ctx.seconds)
        return grad, None, *(torch.zeros_like(param) for param in ctx.params)


class Timed(nn.Module):
    """A layer whose forward pass does so many multiplications; what passes through it is a token."""

    def __init__(self, multiplications: float, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.seconds = DEVICE.seconds(multiplications)
        self.params = nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        return _Timed.apply(x, self.seconds, *self.params)


# -- models -----------------------------------------------------------------------------------------------------------
def _mlp(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))


class Recommender(nn.Module):
    """After DLRM: 26 categories per sample from one table of a million rows, two towers as in MLPerf's."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(1_000_000, 64, sparse=sparse, _weight=torch.zeros(1_000_000, 64))
        self.bottom = _mlp(13, 512, 256, 64)
        self.top = _mlp(27 * 64, 1024, 1024, 512, 256, 1)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        found = torch.cat([self.bottom(dense).unsqueeze(1), self.table(categories)], 1)
        return self.top(found.flatten(1))


class Connected(nn.Module):
    """Three fully-connected layers of 4096."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = _mlp(4096, 4096, 4096, 4096)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Transformer(nn.Module):
    """Six layers of 512 over 128 tokens, a vocabulary of 32 000, an output layer of its own."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32_000, 512, sparse=sparse, _weight=torch.zeros(32_000, 512))
        blocks: list[nn.Module] = []
        for _ in range(6):
            norms = Timed(0, (512,), (512,), (512,), (512,))
            attention = Timed(2 * BATCH * 128 * 128 * 512)
            blocks += [norms, nn.Linear(512, 1536), _Part(), attention, nn.Linear(512, 512)]
            blocks += [nn.Linear(512, 2048), nn.Linear(2048, 512)]
        self.blocks = nn.Sequential(*blocks)
        self.out = Timed(BATCH * 128 * 512 * 32_000, (32_000, 512))  # logits themselves would fill the memory

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.blocks(self.embedding(tokens)))


class _Part(nn.Module):
    """Of queries, keys and values, what attention makes of them."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., :512]


def resnet18() -> nn.Module:
    """Its convolutions at 224 × 224, by multiplications; BatchNorm's scales and buffers; the output layer."""
    layers: list[nn.Module] = [Timed(BATCH * 112 * 112 * 64 * 147, (64, 3, 7, 7)), _norm(64)]
    inputs = 64
    for width, side in ((64, 56), (128, 28), (256, 14), (512, 7)):
        for block in range(2):
            for number in range(2):
                taken = inputs if number == 0 and block == 0 else width
                layers += [Timed(BATCH * side * side * width * taken * 9, (width, taken, 3, 3)), _norm(width)]
            if block == 0 and inputs != width:
                layers += [Timed(BATCH * side * side * width * inputs, (width, inputs, 1, 1)), _norm(width)]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(512, 1000))


def _norm(width: int) -> nn.Module:
    norm = Timed(0, (width,), (width,))
    norm.register_buffer("running_mean", torch.zeros(width))
    norm.register_buffer("running_var", torch.ones(width))
    return norm


@dataclass(frozen=True, slots=True)
class Subject:
    """`build(sparse)` makes the model; `inputs` a batch of one worker."""

    build: Callable[[bool], nn.Module]
    inputs: Callable[[np.random.Generator], tuple[Tensor, ...]]
    has_table: bool = False


def _tokens(draw: np.random.Generator) -> tuple[Tensor, ...]:
    """Words come with Zipf's frequencies."""
    return (torch.from_numpy(np.minimum(draw.zipf(1.2, (BATCH, 128)), 32_000) - 1),)


SUBJECTS = {
    "embedding": Subject(
        lambda sparse: Recommender(sparse=sparse),
        lambda draw: (torch.zeros(BATCH, 13), torch.from_numpy(draw.integers(0, 1_000_000, (BATCH, 26)))),
        has_table=True,
    ),
    "connected": Subject(lambda sparse: Connected(), lambda draw: (torch.zeros(BATCH, 4096, requires_grad=True),)),
    "transformer": Subject(lambda sparse: Transformer(sparse=sparse), _tokens, has_table=True),
    "resnet": Subject(lambda sparse: resnet18(), lambda draw: (torch.zeros(BATCH, 512, requires_grad=True),)),
}
