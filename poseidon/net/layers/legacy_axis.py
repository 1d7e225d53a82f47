"""The axis of Concat and Slice: `axis`, or its older name (`concat_dim`, `slice_dim`), which counts from 0 only."""

from __future__ import annotations

from typing import Any

from poseidon.net.layer import Layer, Shape, text_of


def axis_or_legacy(layer: Layer, options: Any, old_name: str, shape: Shape) -> int:
    if not options.HasField(old_name):
        return layer.axis(options.axis, shape)
    axis: int = getattr(options, old_name)
    if options.HasField("axis"):
        raise layer.error(f"takes either axis or its older name {old_name}, got both ({options.axis} and {axis})")
    if axis >= len(shape):
        raise layer.error(f"{old_name} {axis} is out of range for a bottom of shape {text_of(shape)}")
    return axis
