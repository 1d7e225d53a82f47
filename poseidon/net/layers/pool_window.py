"""PoolWindow: where pooling windows lie on an H × W plane, in Caffe's way.

    outputs = round((size + 2 · pad − kernel) / stride) + 1       rounded up, or down with round_mode FLOOR

With padding, a last window that would start beyond the bottom and its leading pad is left out. Windows are clipped at
the edges, so with a stride larger than the kernel and no padding the last one may lie wholly outside: it is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poseidon.net.layer import Layer, Shape, text_of
from poseidon.net.memory import MAX_EXTENT


@dataclass(frozen=True, slots=True)
class PoolWindow:
    """Numbers for (height, width)."""

    kernel: Shape
    stride: Shape
    pad: Shape
    rounds_up: bool = True

    def outputs(self, sizes: Sequence[int]) -> Shape:
        return tuple(self._outputs_along(axis, size) for axis, size in enumerate(sizes))

    def _outputs_along(self, axis: int, size: int) -> int:
        kernel, stride, pad = self.kernel[axis], self.stride[axis], self.pad[axis]
        room = size + 2 * pad - kernel
        count = (-(-room // stride) if self.rounds_up else room // stride) + 1
        # A pad along one axis clips both, as in Caffe.
        clips = any(self.pad) and (count - 1) * stride >= size + pad
        return count - 1 if clips else count

    def suits_torch(self, sizes: Sequence[int]) -> bool:
        """True if torch's own pooling has the same windows: it takes at most half a kernel of padding, and no empty
        windows."""
        return all(
            2 * pad <= kernel and (count - 1) * stride < size + pad
            for size, count, kernel, stride, pad in zip(
                sizes, self.outputs(sizes), self.kernel, self.stride, self.pad, strict=True
            )
        )

    def margins(self, sizes: Sequence[int]) -> list[int]:
        """Padding, as F.pad takes it (left, right, top, bottom), inside which every window lies whole."""
        margins = []
        for size, count, kernel, stride, pad in zip(
            sizes, self.outputs(sizes), self.kernel, self.stride, self.pad, strict=True
        ):
            margins.append((pad, max((count - 1) * stride + kernel - pad - size, 0)))
        return [n for margin in reversed(margins) for n in margin]

    def unpadded(self) -> PoolWindow:
        """The same windows over a bottom that has the margins already."""
        return PoolWindow(self.kernel, self.stride, (0, 0), rounds_up=False)

    def divisors(self, axis: int, size: int) -> list[int]:
        """Per window along one axis, the length an average divides by: padding counts, what lies beyond it does not.

        An empty window has a length of 0 or below.
        """
        kernel, stride, pad = self.kernel[axis], self.stride[axis], self.pad[axis]
        starts = [i * stride - pad for i in range(self._outputs_along(axis, size))]
        return [min(start + kernel, size + pad) - start for start in starts]


def pooled_shape(layer: Layer, window: PoolWindow, shape: Shape, *, stochastic: bool) -> Shape:
    """The top of pooling an N × C × H × W bottom, once window and bottom are found to fit."""
    kernel, pad = text_of(window.kernel), text_of(window.pad)
    if min(window.kernel) < 1 or min(window.stride) < 1:
        raise layer.error(f"kernel and stride must be at least 1, got {kernel} and {text_of(window.stride)}")
    if max(*window.kernel, *window.stride, *window.pad) > MAX_EXTENT:
        raise layer.error(
            f"kernel, stride and pad must be at most {MAX_EXTENT}, got {kernel}, {text_of(window.stride)} and {pad}"
        )
    if any(window.pad) and stochastic:
        raise layer.error(f"STOCHASTIC pooling takes no padding, got pad {pad}")
    if any(p >= k for p, k in zip(window.pad, window.kernel, strict=True)):
        raise layer.error(f"pad must be smaller than the kernel, got pad {pad} and kernel {kernel}")
    outputs = window.outputs(shape[2:])
    if min(outputs) < 1:
        raise layer.error(
            f"a kernel of {kernel} with pad {pad} does not fit into a bottom of shape {text_of(shape)}: "
            f"the top would be {text_of(outputs)}"
        )
    left, right, above, below = window.margins(shape[2:])
    layer.check_room("the padded plane", (*shape[:2], shape[2] + above + below, shape[3] + left + right))
    return (*shape[:2], *outputs)


def check_pool_bottom(layer: Layer, shape: Shape) -> None:
    if len(shape) != 4:
        raise layer.error(f"needs a bottom with 4 axes (samples x channels x height x width), got {text_of(shape)}")
    if min(shape[1:]) < 1:
        raise layer.error(f"needs at least one channel, row and column, got a bottom of shape {text_of(shape)}")
