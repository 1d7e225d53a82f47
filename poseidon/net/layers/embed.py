"""Embed: y[n] = W[x[n]] (+ b), a row of the table for every index; InnerProduct on one-hot vectors without making them.

    x   any shape, indices 0 … input_dim - 1 (a fraction is cut off)
    W   input_dim × num_output                b   num_output (absent without bias_term)
    y   the shape of x, then num_output

Indices take no gradient. Caffe reads past the table for an index out of range; here that is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Layer, Shape
from poseidon.net.registry import register


@register("Embed")
class Embed(Layer):
    fresh_top = True

    # True: the table's gradient comes as a sparse tensor of the rows read, for whoever exchanges rows.
    gives_rows = False

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.embed_param
        if options.num_output < 1:
            raise self.error(f"embed_param.num_output must be at least 1, got {options.num_output}")
        if options.input_dim < 1:
            raise self.error(f"embed_param.input_dim must be at least 1, got {options.input_dim}")
        self.add_param((options.input_dim, options.num_output), options.weight_filler)
        if options.bias_term:
            self.add_param((options.num_output,), options.bias_filler)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [(*bottom_shapes[0], self.spec.embed_param.num_output)]

    def forward(self, x: Tensor) -> Tensor:
        indices = self.labels(x)
        self._check_range(indices)
        y = F.embedding(indices, self.param(0), sparse=self.gives_rows)
        return y.add_(self.param(1)) if self.spec.embed_param.bias_term else y

    def _check_range(self, indices: Tensor) -> None:
        if not indices.numel():
            return
        rows = self.spec.embed_param.input_dim
        least, most = (int(bound) for bound in indices.aminmax())
        if least < 0 or most >= rows:
            outside = least if least < 0 else most
            raise self.error(f"index {outside} is outside the table; input_dim {rows} admits 0 to {rows - 1}")
