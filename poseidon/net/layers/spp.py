"""SPP: spatial pyramid pooling; a bottom of any size becomes a fixed number of features.

    x   N × C × H × W            y   N × C · (1 + 4 + 16 + …)

Level l of `pyramid_height` pools over 2^l × 2^l bins, each level's top is flattened, and all are joined. Along an
axis of `size`, with b bins:  kernel = stride = ⌈size / b⌉,  pad = ⌈(kernel · b − size) / 2⌉.

As in Caffe, a pyramid of height 1 keeps the shape N × C × 1 × 1, padding clips windows so that a level may have fewer
bins, and a level whose padding reaches the kernel (too many bins for the bottom) is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, count_of, text_of
from poseidon.net.layers.pool_methods import average_pool, max_pool
from poseidon.net.layers.pool_window import PoolWindow, check_pool_bottom, pooled_shape
from poseidon.net.layers.pooling import stochastic_or_expected
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2

MAX_LEVELS = 16  # 2^16 bins a side are beyond any bottom, and higher powers beyond any integer


@register("SPP")
class SPP(Layer):
    # `engine` chooses between implementations of the same result in Caffe; here torch chooses.
    fresh_top = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        height = self.spec.spp_param.pyramid_height
        if not 1 <= height <= MAX_LEVELS:
            raise self.error(f"spp_param.pyramid_height must be 1 to {MAX_LEVELS}, got {height}")

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = bottom_shapes[0]
        check_pool_bottom(self, shape)
        stochastic = self.spec.spp_param.pool == caffe_pb2.SPPParameter.STOCHASTIC
        windows = self.windows(shape[2:])
        for level, window in enumerate(windows):
            if any(pad >= kernel > 0 for pad, kernel in zip(window.pad, window.kernel, strict=True)):
                raise self.error(
                    f"level {level} would pad {text_of(window.pad)} around a kernel of {text_of(window.kernel)}: "
                    f"{2**level} bins are too many for a bottom of shape {text_of(shape)}; lower pyramid_height"
                )
        levels = [pooled_shape(self, window, shape, stochastic=stochastic) for window in windows]
        if len(levels) == 1:
            return levels
        return [(shape[0], sum(count_of(level, 1) for level in levels))]

    def windows(self, sizes: Sequence[int]) -> list[PoolWindow]:
        """The pooling window of each level."""
        windows = []
        for level in range(self.spec.spp_param.pyramid_height):
            bins = 2**level
            kernel = tuple(-(-size // bins) for size in sizes)
            pad = tuple((k * bins - size + 1) // 2 for k, size in zip(kernel, sizes, strict=True))
            windows.append(PoolWindow(kernel, kernel, pad))
        return windows

    def forward(self, x: Tensor) -> Tensor:
        pooled = [self._pooled(x, level, window) for level, window in enumerate(self.windows(x.shape[2:]))]
        return pooled[0] if len(pooled) == 1 else torch.cat([level.flatten(1) for level in pooled], 1)

    def _pooled(self, x: Tensor, level: int, window: PoolWindow) -> Tensor:
        method = self.spec.spp_param.pool
        if method == caffe_pb2.SPPParameter.STOCHASTIC:
            return stochastic_or_expected(self, x, window, f"{self.name} level {level}")
        return average_pool(x, window) if method == caffe_pb2.SPPParameter.AVE else max_pool(x, window)[0]
