"""Filter: the samples whose selector is not zero, of every bottom but the last, which is the selector.

    bottoms   N × …, as many as there are tops, then the selector: N, or N × 1 × …
    tops      K × …, K the number of non-zero selectors

K is known only in forward; until then the tops have room for all N, as in Caffe. Samples left out get gradient 0.
With nothing selected the tops are empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, at_least, count_of, text_of
from poseidon.net.registry import register


@register("Filter")
class Filter(Layer):
    bottoms = at_least(2)
    tops = at_least(1)
    fresh_top = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        num_filtered = len(bottom_shapes) - 1
        if self.num_tops != num_filtered:
            raise self.error(
                f"gives one top per bottom but the last, the selector: {num_filtered}, got {self.num_tops} top(s)"
            )

    def allows_forced_backward(self, bottom_index: int) -> bool:
        return bottom_index != len(self.spec.bottom) - 1

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        *filtered, selector = bottom_shapes
        if not selector or count_of(selector, 1) != 1:
            raise self.error(f"needs a selector of one value per sample (N, or N x 1 x ...), got {text_of(selector)}")
        for shape in filtered:
            if shape[:1] != selector[:1]:
                raise self.error(
                    "bottoms and selector need the same number of samples, "
                    f"got {text_of(shape)} and {text_of(selector)}"
                )
        return filtered

    def forward(self, *bottoms: Tensor) -> Tensor | tuple[Tensor, ...]:
        *filtered, selector = bottoms
        if selector.requires_grad and torch.is_grad_enabled():
            raise self.error("cannot back-propagate to its selector; set propagate_down to false for it")
        chosen = selector.flatten().nonzero().flatten()
        return tuple(bottom.index_select(0, chosen) for bottom in filtered)
