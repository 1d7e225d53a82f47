"""BatchReindex: samples picked by index: y_k = x_{i_k}; a sample picked often gets the sum of its gradients.

bottoms   x: N × …,  i: K indices from 0 to N - 1, one axis
top       K × …
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape, exactly, text_of
from poseidon.net.registry import register


@register("BatchReindex")
class BatchReindex(Layer):
    bottoms = exactly(2)
    unforced_bottoms = frozenset({1})
    fresh_top = True

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        samples, indices = bottom_shapes
        if len(samples) < 1:
            raise self.error("needs samples of at least 1 axis, got a scalar ()")
        if len(indices) != 1:
            raise self.error(f"needs indices of 1 axis, got shape {text_of(indices)}")
        return [(*indices, *samples[1:])]

    def forward(self, x: Tensor, indices: Tensor) -> Tensor:
        rows = self.labels(indices)
        # Asked this way round, so that NaN is outside; so is what no integer holds, whatever row it has become.
        outside = ~((indices >= 0) & (rows >= 0) & (rows < x.shape[0]))
        if outside.any():
            raise self.error(
                f"indices must be from 0 to {x.shape[0] - 1} (the batch holds {x.shape[0]} samples), "
                f"got {indices[outside][0].item():g}"
            )
        return x.index_select(0, rows)
