"""LRN: local response normalization, x divided by a power of the energy around it.

    y = x · s^−β        s = k + α/n · Σ x²    over the n channels around x's own                    (ACROSS_CHANNELS)
                        s = 1 + α/n² · Σ x²   over the n × n square around x in its own plane       (WITHIN_CHANNEL)

    dx = g · s^−β − 2αβ/n · x · Σ g · x · s^−β / s        the sum over the same window (α/n² within a channel)

n = local_size is odd. What lies beyond the edges counts as zero and is counted in n: Caffe's within-channel average
pools with padding, whose windows are never clipped at stride 1. `k` has no part in WITHIN_CHANNEL, as in Caffe.

Both work block by block, so that what lies between x and y stays in the processor's cache, and keep nothing but x for
the backward pass: making s again costs less than storing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from poseidon.net.layer import Layer, Shape
from poseidon.net.layers.pool_window import check_pool_bottom
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2

# Elements per block and thread: a handful of buffers of this size fit into a second-level cache.
BLOCK_ELEMS = 1 << 15


@register("LRN")
class LRN(Layer):
    # `engine` chooses between implementations of the same result in Caffe; here torch chooses.
    fresh_top = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        size = self.spec.lrn_param.local_size
        if size % 2 == 0:
            raise self.error(f"lrn_param.local_size must be odd, got {size}")

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = bottom_shapes[0]
        check_pool_bottom(self, shape)
        return [shape]

    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.lrn_param
        size = options.local_size
        precise = x.to(torch.promote_types(x.dtype, torch.float32))
        if options.norm_region == caffe_pb2.LRNParameter.ACROSS_CHANNELS:
            y = _AcrossChannels.apply(precise, _Response(size, options.alpha / size, options.beta, options.k))
        else:
            y = _WithinChannel.apply(precise, _Response(size, options.alpha / size**2, options.beta, 1.0))
        return y.to(x.dtype)


@dataclass(frozen=True, slots=True)
class _Response:
    """s = base + weight · Σ x² over `size` (or size × size) values, raised to −power."""

    size: int
    weight: float
    power: float
    base: float

    def inverse(self, scale: Tensor, out: Tensor | None = None) -> Tensor:
        """scale^−power. Three vectorised passes take a quarter of `pow`'s time; a whole power has sign rules of its
        own, which `pow` knows."""
        if self.power.is_integer():
            return torch.pow(scale, -self.power, out=out)
        return torch.log(scale, out=out).mul_(-self.power).exp_()


class _ChannelWindows:
    """Sums over neighbouring channels, block by block; in a row, `step` elements lie between two neighbours.

    Every row stands in the buffer with half a window of `edge` on either side; so a sum over windows is the sum of
    shifted copies of the whole buffer, made by doubling: 1, 2, 4, … neighbours at once. What this yields between two
    rows, or for the rows that a short last block leaves as they were, is never looked at.

    inside   rows × length: where the values go          sums   the same rows, once `add_up` has run
    """

    def __init__(self, block: Tensor, step: int, size: int, edge: float) -> None:
        num_rows, length = block.shape
        self._pitch = length + (size - 1) * step
        buffer = block.new_full((num_rows, self._pitch), edge)
        self.inside = buffer.narrow(1, (size // 2) * step, length)
        powers = [buffer.view(-1)]
        self._adds: list[tuple[Tensor, Tensor, Tensor]] = []
        for bit in range(size.bit_length() - 1):
            shift = step << bit
            left, right = powers[-1][: len(powers[-1]) - shift], powers[-1][shift:]
            powers.append(torch.empty_like(left))
            self._adds.append((left, right, powers[-1]))
        self.flat = powers.pop()
        taken = 1 << len(powers)
        for bit in reversed(range(len(powers))):
            if size & 1 << bit:
                rest = powers[bit][taken * step :]
                self.flat = self.flat[: len(rest)]
                self._adds.append((self.flat, rest, self.flat))
                taken += 1 << bit
        self.sums = self.rows_of(self.flat, block)

    def add_up(self) -> None:
        for left, right, out in self._adds:
            torch.add(left, right, out=out)

    def rows_of(self, flat: Tensor, block: Tensor) -> Tensor:
        """The rows of the block in something that is laid out like `flat`."""
        return flat.as_strided(block.shape, (self._pitch, 1))


class _Energy:
    """s = base + weight · Σ x², and s^−power. Every term, also beyond the edges, brings its share of the base along."""

    def __init__(self, block: Tensor, step: int, channels: int, response: _Response) -> None:
        # A window twice as wide as there are channels sees them all.
        self.size = min(response.size, max(2 * channels - 1, 1))
        self._response = response
        self._share = block.new_tensor(response.base / self.size)
        self._windows = _ChannelWindows(block, step, self.size, response.base / self.size)
        self._inverse = torch.empty_like(self._windows.flat)
        self.scale = self._windows.sums
        self.inverse = self._windows.rows_of(self._inverse, block)

    def measure(self, xs: Tensor) -> None:
        """Fills `scale` and `inverse`, in whose first rows the block's are."""
        torch.addcmul(self._share, xs, xs, value=self._response.weight, out=self._windows.inside[: len(xs)])
        self._windows.add_up()
        self._response.inverse(self._windows.flat, out=self._inverse)


class _AcrossChannels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, response: _Response) -> Tensor:
        x = _dense(x)
        ctx.save_for_backward(x)
        ctx.response = response
        y = torch.empty_like(x)
        rows, step = _rows(x)
        blocks = rows.split(_block_length(rows))
        energy = _Energy(blocks[0], step, x.shape[1], response)
        for xs, ys in zip(blocks, _rows(y)[0].split(len(blocks[0])), strict=True):
            energy.measure(xs)
            torch.mul(xs, energy.inverse[: len(xs)], out=ys)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        response: _Response = ctx.response
        dx = torch.empty_like(x)
        rows, step = _rows(x)
        blocks = rows.split(_block_length(rows))
        energy = _Energy(blocks[0], step, x.shape[1], response)
        ratios = _ChannelWindows(blocks[0], step, energy.size, 0.0)
        product = torch.empty_like(blocks[0])
        grads = _rows(grad if grad.stride() == x.stride() else torch.empty_like(x).copy_(grad))[0]
        others = (tensor.split(len(blocks[0])) for tensor in (grads, _rows(dx)[0]))
        for xs, gs, ds in zip(blocks, *others, strict=True):
            n = len(xs)
            energy.measure(xs)
            torch.mul(gs, energy.inverse[:n], out=ds)
            torch.mul(ds, xs, out=product[:n])
            torch.div(product[:n], energy.scale[:n], out=ratios.inside[:n])
            ratios.add_up()
            ds.addcmul_(xs, ratios.sums[:n], value=-2 * response.weight * response.power)
        return dx, None


class _WithinChannel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, response: _Response) -> Tensor:
        x = _dense(x)
        ctx.save_for_backward(x)
        ctx.response = response
        y = torch.empty_like(x)
        block = _block_length(x)
        for xs, ys in zip(x.split(block), y.split(block), strict=True):
            torch.mul(xs, response.inverse(_plane_scale(xs, response)), out=ys)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        response: _Response = ctx.response
        dx = torch.empty_like(x)
        block = _block_length(x)
        for xs, gs, ds in zip(x.split(block), grad.split(block), dx.split(block), strict=True):
            scale = _plane_scale(xs, response)
            direct = gs * response.inverse(scale)
            spread = _plane_sums((direct * xs).div_(scale), response.size)
            torch.addcmul(direct, xs, spread, value=-2 * response.weight * response.power, out=ds)
        return dx, None


def _plane_scale(xs: Tensor, response: _Response) -> Tensor:
    return _plane_sums(xs * xs, response.size).mul_(response.weight).add_(response.base)


def _plane_sums(values: Tensor, size: int) -> Tensor:
    """Σ over the size × size square around every value of its plane."""
    size = min(size, 2 * max(values.shape[2:]) - 1)  # twice as wide as the plane, it sees all of it
    return F.avg_pool2d(values, size, 1, size // 2, divisor_override=1)


def _dense(x: Tensor) -> Tensor:
    """x itself if its memory runs channels-last, else in rows."""
    return x if x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()


def _rows(x: Tensor) -> tuple[Tensor, int]:
    """A dense x as rows × (channels · step): a row is a sample, or a pixel if channels come last."""
    num, channels, height, width = x.shape
    if x.is_contiguous():
        return x.view(num, channels * height * width), height * width
    return x.permute(0, 2, 3, 1).reshape(num * height * width, channels), 1


def _block_length(rows: Tensor) -> int:
    """How many rows (first axis) make a block."""
    if rows.device.type != "cpu" or torch.compiler.is_compiling():
        return max(len(rows), 1)
    row_elems = max(rows.numel() // max(len(rows), 1), 1)
    return max(BLOCK_ELEMS * torch.get_num_threads() // row_elems, 1)
