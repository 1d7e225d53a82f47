"""Reshape: the same values under another shape.

The bottom's axes [axis, axis + num_axes) (num_axes -1: all the rest) are replaced by the dims of reshape_param.shape:

    0    the extent of the bottom's axis at the same position
    -1   whatever makes the counts agree, at most once
    n    n

A negative axis counts from behind the last one: -1 with num_axes 0 appends axes. The top is a view.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape, count_of, text_of
from poseidon.net.layers.in_place import forbid_in_place
from poseidon.net.registry import register


@register("Reshape")
class Reshape(Layer):
    views_bottom = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        forbid_in_place(self)
        dims = self.spec.reshape_param.shape.dim
        if any(dim < -1 for dim in dims) or list(dims).count(-1) > 1:
            raise self.error(
                f"reshape_param.shape takes positive dims, 0 (copy) and at most one -1 (infer), got {text_of(dims)}"
            )

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [self.new_shape(bottom_shapes[0])]

    def new_shape(self, shape: Shape) -> Shape:
        start, end = self.replaced(shape)
        dims = [self.copied(shape, start + i) if dim == 0 else dim for i, dim in enumerate(self.dims)]
        new = [*shape[:start], *dims, *shape[end:]]
        if -1 in new:
            known = count_of([dim for dim in new if dim != -1])
            if known == 0 or count_of(shape) % known:
                raise self.error(
                    f"cannot infer the -1 of {text_of(new)}: a bottom of shape {text_of(shape)} has {count_of(shape)} "
                    f"values, which {known} does not divide"
                )
            new[new.index(-1)] = count_of(shape) // known
        if count_of(new) != count_of(shape):
            raise self.error(
                f"must keep the number of values, got a bottom of shape {text_of(shape)} ({count_of(shape)}) "
                f"and a new shape {text_of(new)} ({count_of(new)})"
            )
        return tuple(new)

    @property
    def dims(self) -> list[int]:
        return list(self.spec.reshape_param.shape.dim)

    def replaced(self, shape: Shape) -> tuple[int, int]:
        """The axes [start, end) of the bottom that give way."""
        options = self.spec.reshape_param
        start = options.axis if options.axis >= 0 else len(shape) + options.axis + 1
        if not 0 <= start <= len(shape):
            raise self.error(f"axis {options.axis} is out of range for a bottom of shape {text_of(shape)}")
        if options.num_axes < -1:
            raise self.error(f"num_axes must be at least 0, or -1 for all, got {options.num_axes}")
        end = len(shape) if options.num_axes == -1 else start + options.num_axes
        if end > len(shape):
            raise self.error(
                f"axis {options.axis} with num_axes {options.num_axes} is out of range "
                f"for a bottom of shape {text_of(shape)}"
            )
        return start, end

    def copied(self, shape: Shape, axis: int) -> int:
        if axis >= len(shape):
            raise self.error(f"a dim of 0 copies axis {axis}, which a bottom of shape {text_of(shape)} does not have")
        return shape[axis]

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(self.new_shape(x.shape))
