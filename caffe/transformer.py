"""Transformer: an image into what a net's input wants, and back.

    preprocess   float32 → resize to the input's height and width → transpose → swap channels → · raw_scale
                 → − mean → · input_scale
    deprocess    the same steps undone, but for the resizing

Which of them are done is set per input; `inputs` is {name: shape of the input blob}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from caffe.images import resize_image
from poseidon.errors import UsageError


class Transformer:
    def __init__(self, inputs: Mapping[str, Sequence[int]]) -> None:
        self.inputs = {name: tuple(shape) for name, shape in inputs.items()}
        self.transpose: dict[str, Sequence[int]] = {}
        self.channel_swap: dict[str, Sequence[int]] = {}
        self.raw_scale: dict[str, float] = {}
        self.mean: dict[str, np.ndarray] = {}
        self.input_scale: dict[str, float] = {}

    def preprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """An image (height × width × channels) as the input blob wants one."""
        self._check(in_)
        image = data.astype(np.float32, copy=False)
        size = self.inputs[in_][2:]
        if image.shape[:2] != size:
            image = resize_image(image, size)
        if in_ in self.transpose:
            image = image.transpose(self.transpose[in_])
        if in_ in self.channel_swap:
            image = image[list(self.channel_swap[in_]), :, :]
        if in_ in self.raw_scale:
            image = image * np.float32(self.raw_scale[in_])
        if in_ in self.mean:
            image = image - self.mean[in_].astype(np.float32)
        if in_ in self.input_scale:
            image = image * np.float32(self.input_scale[in_])
        return image

    def deprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """What `preprocess` was given, from what it made, but for the size."""
        self._check(in_)
        image = data.copy().squeeze()
        if in_ in self.input_scale:
            image = image / self.input_scale[in_]
        if in_ in self.mean:
            image = image + self.mean[in_]
        if in_ in self.raw_scale:
            image = image / self.raw_scale[in_]
        if in_ in self.channel_swap:
            image = image[np.argsort(self.channel_swap[in_]), :, :]
        if in_ in self.transpose:
            image = image.transpose(np.argsort(self.transpose[in_]))
        return image

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """Order of the axes, such as (2, 0, 1) to make an image channels × height × width."""
        self._check(in_)
        if len(order) != len(self.inputs[in_]) - 1:
            raise UsageError(
                f"set_transpose: the order needs one entry per axis of an image ({len(self.inputs[in_]) - 1}), "
                f"got {tuple(order)}"
            )
        self.transpose[in_] = order

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """Order of the channels, such as (2, 1, 0) for RGB to BGR; channels are the first axis by then."""
        self._check(in_)
        if len(order) != self.inputs[in_][1]:
            raise UsageError(
                f"set_channel_swap: the order needs one entry per channel of {in_!r} ({self.inputs[in_][1]}), "
                f"got {tuple(order)}"
            )
        self.channel_swap[in_] = order

    def set_raw_scale(self, in_: str, scale: float) -> None:
        """Factor before the mean is subtracted: 255 for nets that were trained on bytes."""
        self._check(in_)
        self.raw_scale[in_] = scale

    def set_mean(self, in_: str, mean: np.ndarray) -> None:
        """What to subtract: a value per channel, or an image, which is resized to the input's size."""
        self._check(in_)
        channels, size = self.inputs[in_][1], self.inputs[in_][2:]
        if mean.ndim == 1:
            if mean.shape[0] != channels:
                raise ValueError(f"Mean channels incompatible with input: {in_!r} has {channels}, got {mean.shape[0]}")
            mean = mean[:, np.newaxis, np.newaxis]
        else:
            mean = mean[np.newaxis] if mean.ndim == 2 else mean
            if mean.ndim != 3 or mean.shape[0] not in (1, channels):
                raise ValueError(
                    f"Mean shape invalid: expected {channels}, or {channels} x height x width, got {mean.shape}"
                )
            if mean.shape[1:] != size:
                mean = resize_image(mean.transpose(1, 2, 0), size).transpose(2, 0, 1)
        self.mean[in_] = mean

    def set_input_scale(self, in_: str, scale: float) -> None:
        """Factor after the mean has been subtracted."""
        self._check(in_)
        self.input_scale[in_] = scale

    def _check(self, in_: str) -> None:
        if in_ not in self.inputs:
            raise UsageError(f"{in_} is not one of the net inputs: {', '.join(self.inputs) or 'none'}")
