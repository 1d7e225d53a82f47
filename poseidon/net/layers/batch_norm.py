"""BatchNorm: y = (x - μ) / √(σ² + eps), per channel (axis 1), over all other axes. Scale and shift: see Scale.

    x, y   N × C × …   (one axis: one channel)          m   number of values per channel

Three blobs hold running sums, not averages, and forward itself maintains them:

    0  mean sum      S ← fraction · S + mean(x)                  C
    1  variance sum  V ← fraction · V + m / (m - 1) · var(x)     C      (var(x) itself for m = 1)
    2  factor        F ← fraction · F + 1                        1

Batch statistics (biased variance) normalise in TRAIN phase; in TEST phase the global ones do, μ = S / F and σ² = V / F
(0 where F is 0), and the blobs stay as they are. `use_global_stats` overrules the phase either way; a frozen
layer uses the global ones always.

`normalize` takes the scale and shift of a following Scale layer, so that a net can run the pair as one kernel.

Of several workers each has its own batch's statistics, unless they are told to use those of all batches together
(`over_workers`): see synced_norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, LayerContext, Shape, text_of
from poseidon.net.layers.synced_norm import GatherRows, synced_norm
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2


@register("BatchNorm")
class BatchNorm(Layer):
    fresh_top = True

    def __init__(self, spec: caffe_pb2.LayerParameter, context: LayerContext) -> None:
        super().__init__(spec, context)
        self._gather_rows: GatherRows | None = None

    def over_workers(self, gather: GatherRows | None) -> None:
        """Batch statistics are those of all workers' batches together; None: this worker's alone, as in the beginning.

        All workers then have the same statistics, bit for bit.
        """
        self._gather_rows = gather

    @property
    def use_global_stats(self) -> bool:
        options = self.spec.batch_norm_param
        if self.context.frozen:
            return True
        return options.use_global_stats if options.HasField("use_global_stats") else not self.training_phase

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        for index, spec in enumerate(self.spec.param):
            if spec.lr_mult != 0:
                raise self.error(
                    f"its blobs are statistics, not learned: `param` entry {index} needs lr_mult 0, "
                    f"got {spec.lr_mult:g}; leave the entries out or set lr_mult: 0"
                )
        channels = self._channels(bottom_shapes[0])
        self.add_param((channels,), learned=False)
        self.add_param((channels,), learned=False)
        self.add_param((1,), learned=False)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = bottom_shapes[0]
        expected = self.param_shapes[0][0]
        if self._channels(shape) != expected:
            raise self.error(
                f"was built for {expected} channels, got a bottom of shape {text_of(shape)} "
                f"({self._channels(shape)} channels)"
            )
        return [shape]

    def forward(self, x: Tensor) -> Tensor:
        return self.normalize(x)

    def normalize(self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """weight · BatchNorm(x) + bias, with the statistics kept as by BatchNorm alone; weight and bias: C or None."""
        if x.dim() == 1:
            return self.normalize(x.unsqueeze(1), weight, bias).squeeze(1)
        eps = self.spec.batch_norm_param.eps
        if self.use_global_stats:
            mean, variance = self._global_statistics()
            return _batch_norm(x, weight, bias, mean, variance, False, eps)
        if self._gather_rows is not None:
            return self._synced(x, weight, bias, self._gather_rows)
        mean, variance = torch.zeros_like(self.param(0)), torch.zeros_like(self.param(1))
        # A running average with momentum 1 is the newest value: the kernel leaves the batch's mean and unbiased
        # variance in these two, and the statistics cost no pass of their own.
        y = _batch_norm(x, weight, bias, mean, variance, True, eps)
        if x.numel() == x.shape[1]:
            # One value per channel has no unbiased estimate, the kernel leaves 0 / 0; backward still wants that tensor.
            variance = torch.zeros_like(variance)
        self._gather(mean, variance)
        return y

    def _synced(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, gather: GatherRows) -> Tensor:
        y, mean, variance = synced_norm(x, self.spec.batch_norm_param.eps, gather)
        dtype = self.param(0).dtype
        self._gather(mean.to(dtype), variance.to(dtype))
        extents = (1, -1, *[1] * (x.dim() - 2))
        y = y if weight is None else y * weight.view(extents)
        return y if bias is None else y + bias.view(extents)

    def _channels(self, shape: Shape) -> int:
        if not shape:
            raise self.error("needs a bottom with at least one axis, got a scalar")
        return 1 if len(shape) == 1 else shape[1]

    def _global_statistics(self) -> tuple[Tensor, Tensor]:
        factor = self.param(2)
        divisor = factor.masked_fill(factor == 0, math.inf)
        return self.param(0) / divisor, self.param(1) / divisor

    def _gather(self, mean: Tensor, variance: Tensor) -> None:
        fraction = self.spec.batch_norm_param.moving_average_fraction
        mean_sum, variance_sum, factor = self.param(0), self.param(1), self.param(2)
        torch.add(mean, mean_sum, alpha=fraction, out=mean_sum)
        torch.add(variance, variance_sum, alpha=fraction, out=variance_sum)
        factor.mul_(fraction).add_(1)


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, from_batch: bool, eps: float
) -> Tensor:
    """torch's kernel itself; torch.nn.functional's refuses one value per channel, which Caffe admits."""
    return torch.batch_norm(x, weight, bias, mean, variance, from_batch, 1.0, eps, torch.backends.cudnn.enabled)
