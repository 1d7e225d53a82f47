"""How Scale and Bias lay a smaller blob over a larger one: its axes stand under those of the bottom from `axis` on.

    bottom    d0 × d1 × d2 × d3                         axis 1, num_axes 2
    operand        d1 × d2                              repeated over d0 and d3

num_axes -1 reaches to the bottom's last axis, 0 makes the operand a scalar (`axis` then does not matter).
"""

from __future__ import annotations

from torch import Tensor

from poseidon.net.layer import Layer, Shape, text_of


def operand_shape(layer: Layer, bottom: Shape, axis: int, num_axes: int) -> Shape:
    """Shape of the learned operand for this bottom."""
    if num_axes < -1:
        raise layer.error(f"num_axes must be at least 0, or -1 for all axes from `axis` on, got {num_axes}")
    if num_axes == 0:
        return ()
    start = layer.axis(axis, bottom)
    end = len(bottom) if num_axes == -1 else start + num_axes
    if end > len(bottom):
        raise layer.error(
            f"axis {axis} with num_axes {num_axes} reaches past the last axis of a bottom of shape {text_of(bottom)}"
        )
    return bottom[start:end]


def check_operand(layer: Layer, bottom: Shape, operand: Shape, axis: int) -> None:
    """The operand's extents must be the bottom's, from `axis` on."""
    if not operand:
        return
    start = layer.axis(axis, bottom)
    under = bottom[start : start + len(operand)]
    if under != operand:
        raise layer.error(
            f"an operand of shape {text_of(operand)} does not fit "
            f"a bottom of shape {text_of(bottom)} from axis {axis} on"
        )


def laid_over(operand: Tensor, bottom: Tensor, axis: int) -> Tensor:
    """The operand with axes of extent 1 added, so that torch's broadcasting lays it under the right axes."""
    after = bottom.dim() - axis % bottom.dim() - operand.dim() if operand.dim() else 0
    return operand.reshape(operand.shape + (1,) * after)
