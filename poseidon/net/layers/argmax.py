"""ArgMax: positions (and values) of the top_k largest entries.

    no axis              entries of a whole sample, N × K:    N × 1 × top_k (× 1 …) positions,
                                                 out_max_val: N × 2 × top_k (× 1 …) positions, then values
    axis                 along that axis, which becomes top_k long: positions, or with out_max_val the values

Largest first; of equal entries the later one first. Positions are whole numbers in a float blob, never below float32
so that they stay exact. No gradient flows through it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, count_of, text_of
from poseidon.net.layers.classes import rows_of_samples
from poseidon.net.registry import register


@register("ArgMax")
class ArgMax(Layer):
    unforced_bottoms = frozenset({0})

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        options = self.spec.argmax_param
        shape = bottom_shapes[0]
        if options.HasField("axis"):
            axis = self.axis(options.axis, shape, "argmax_param.axis")
            self._check_top_k(shape[axis], shape, f"axis {axis}")
            return [(*shape[:axis], options.top_k, *shape[axis + 1 :])]
        if not shape:
            raise self.error("needs a bottom with at least one axis, got a scalar")
        self._check_top_k(count_of(shape, 1), shape, "one sample")
        return [(shape[0], 2 if options.out_max_val else 1, options.top_k, *[1] * (len(shape) - 3))]

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.argmax_param
        exact = torch.promote_types(x.dtype, torch.float32)
        if options.HasField("axis"):
            axis = options.axis % x.dim()
            index = largest(x, options.top_k, axis)
            return x.gather(axis, index) if options.out_max_val else index.to(exact)
        samples = rows_of_samples(x)
        index = largest(samples, options.top_k, 1)
        parts = [index.to(exact), samples.gather(1, index).to(exact)] if options.out_max_val else [index.to(exact)]
        return torch.stack(parts, 1).reshape(x.shape[0], len(parts), options.top_k, *[1] * (x.dim() - 3))

    def _check_top_k(self, size: int, shape: Shape, where: str) -> None:
        top_k = self.spec.argmax_param.top_k
        if not 1 <= top_k <= size:
            raise self.error(
                f"argmax_param.top_k must be 1 to {size}, the entries of {where} ({text_of(shape)}), got {top_k}"
            )


def largest(x: Tensor, top_k: int, axis: int) -> Tensor:
    """Positions of the largest entries along an axis, largest first, of equal ones the later first."""
    size = x.shape[axis]
    if top_k == 1:
        return size - 1 - x.flip(axis).max(axis, keepdim=True).indices
    best = x.topk(min(top_k + 1, size), axis)  # one more than asked for, to see ties across the end
    num_pairs = best.values.shape[axis] - 1
    if not (best.values.narrow(axis, 0, num_pairs) == best.values.narrow(axis, 1, num_pairs)).any():
        return best.indices.narrow(axis, 0, top_k)
    # torch.topk leaves the order of equal entries open; a stable sort of the reversed entries does not.
    order = x.flip(axis).sort(dim=axis, descending=True, stable=True).indices
    return size - 1 - order.narrow(axis, 0, top_k)
