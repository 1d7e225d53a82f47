"""Pooling: one number per window of each N × C plane: its maximum, its average, or one of its values by chance.

    x   N × C × H × W            y   N × C × outputs(H) × outputs(W)         see pool_window.py and pool_methods.py

MAX has an optional second top, the mask: the index (row · W + column) of each maximum in its plane, which gets no
gradient. `global_pooling` makes the window as large as the bottom, whatever that is. STOCHASTIC takes no padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, between, text_of
from poseidon.net.layers.pool_methods import average_pool, expected_pool, max_mask, max_pool, stochastic_pool
from poseidon.net.layers.pool_window import PoolWindow, check_pool_bottom, pooled_shape
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2

MAX, AVE, STOCHASTIC = (
    caffe_pb2.PoolingParameter.MAX,
    caffe_pb2.PoolingParameter.AVE,
    caffe_pb2.PoolingParameter.STOCHASTIC,
)


@register("Pooling")
class Pooling(Layer):
    # `engine` chooses between implementations of the same result in Caffe; here torch chooses.
    tops = between(1, 2)
    fresh_top = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.pooling_param
        if self.num_tops == 2 and options.pool != MAX:
            raise self.error("only MAX pooling has a mask as second top")
        if not options.global_pooling:
            return
        for field in ("kernel_size", "kernel_h", "kernel_w"):
            if options.HasField(field):
                raise self.error(f"global_pooling takes the bottom's size as kernel; leave {field} out")
        stride, pad = self._pair("stride", "stride"), self._pair("pad", "pad")
        if any(pad) or stride != (1, 1):
            raise self.error(
                f"global_pooling works with pad 0 and stride 1, got pad {text_of(pad)} and stride {text_of(stride)}"
            )

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = bottom_shapes[0]
        check_pool_bottom(self, shape)
        stochastic = self.spec.pooling_param.pool == STOCHASTIC
        return [pooled_shape(self, self.window_over(shape[2:]), shape, stochastic=stochastic)] * self.num_tops

    def window_over(self, sizes: Sequence[int]) -> PoolWindow:
        """The window for a bottom of these sizes."""
        options = self.spec.pooling_param
        kernel = tuple(sizes) if options.global_pooling else self._pair("kernel", "kernel_size")
        rounds_up = options.round_mode == caffe_pb2.PoolingParameter.CEIL
        return PoolWindow(kernel, self._pair("stride", "stride"), self._pair("pad", "pad"), rounds_up)

    def _pair(self, name: str, field: str) -> Shape:
        """An option given for both axes, or as `_h` and `_w`."""
        options = self.spec.pooling_param
        given = [options.HasField(f"{name}_{side}") for side in "hw"]
        if not any(given):
            return (getattr(options, field),) * 2
        if not all(given) or options.HasField(field):
            raise self.error(f"give either {field} or both {name}_h and {name}_w")
        return getattr(options, f"{name}_h"), getattr(options, f"{name}_w")

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        window = self.window_over(x.shape[2:])
        method = self.spec.pooling_param.pool
        if method == STOCHASTIC:
            return stochastic_or_expected(self, x, window, self.name)
        if method == AVE:
            return average_pool(x, window)
        y, indices = max_pool(x, window)
        if self.num_tops == 1:
            return y
        return y, max_mask(indices, window, x.shape[2:], torch.promote_types(x.dtype, torch.float32))


def stochastic_or_expected(layer: Layer, x: Tensor, window: PoolWindow, key: str) -> Tensor:
    """STOCHASTIC pooling in the layer's phase; `key` names its draws."""
    if not layer.training_phase:
        return expected_pool(x, window)
    uniform = x.new_empty(*x.shape[:2], *window.outputs(x.shape[2:]))
    layer.context.draws.per_sample(key, uniform, lambda row, generator: row.uniform_(generator=generator))
    return stochastic_pool(x, window, 1 - uniform)
