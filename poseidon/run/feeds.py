"""Feeds: nets whose data is not here, as plans and simulations meet them.

A layer that reads images from somewhere, and says how large it crops or resizes them, has tops of known shapes even if
the images are on another machine:

    Data, ImageData, WindowData     N × channels × crop × crop (ImageData without a crop: new_height × new_width), and N

Channels: as many as `mean_value` has, if it has several; else 3, or 1 where gray is asked for. Such a layer is replaced
by an Input of these shapes. Of one that does not say enough, somebody else has to (`image`).
"""

from __future__ import annotations

import os

from poseidon.errors import UsageError
from poseidon.spec import NetSource, caffe_pb2

_PARAMS = {"Data": "data_param", "ImageData": "image_data_param", "WindowData": "window_data_param"}
Image = tuple[int, int, int]
"""Channels, height and width of what a net sees."""


def replace_missing_data(source: NetSource, image: Image | None = None) -> list[str]:
    """Replaces what cannot be read here, in place; the names of these layers. `image`: of what does not say it."""
    replaced = []
    for layer in source.net.layer:
        if layer.type in _PARAMS and not os.path.exists(getattr(layer, _PARAMS[layer.type]).source):
            extents = _extents(layer, image)
            if extents is None:
                raise UsageError(
                    f"{source.filename}: layer {layer.name!r} reads {getattr(layer, _PARAMS[layer.type]).source!r}, "
                    "which is not here, and does not say how large its images are: give their size, as in "
                    "--image=1x28x28 (channels, height, width)"
                )
            _make_input(layer, extents)
            replaced.append(layer.name)
    return replaced


def _extents(layer: caffe_pb2.LayerParameter, image: Image | None) -> list[int] | None:
    """Batch, channels, height and width; None if nobody says."""
    options = getattr(layer, _PARAMS[layer.type])
    transform = layer.transform_param
    if image is not None and options.batch_size:
        return [options.batch_size, *image]
    height = width = transform.crop_size or getattr(options, "crop_size", 0)
    if layer.type == "ImageData" and not height:
        height, width = options.new_height, options.new_width
    if not (height and width and options.batch_size):
        return None
    is_gray = transform.force_gray or (layer.type == "ImageData" and not options.is_color)
    channels = len(transform.mean_value) if len(transform.mean_value) > 1 else 1 if is_gray else 3
    return [options.batch_size, channels, height, width]


def _make_input(layer: caffe_pb2.LayerParameter, extents: list[int]) -> None:
    for name in (*_PARAMS.values(), "transform_param"):
        layer.ClearField(name)
    layer.type = "Input"
    layer.input_param.shape.add().dim.extend(extents)
    for _ in layer.top[1:]:
        layer.input_param.shape.add().dim.append(extents[0])
