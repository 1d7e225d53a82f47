"""Detector: a Net that classifies windows of images, each warped to the net's input.

A window is (top, left, bottom, right) in pixels. With `context_pad` c, the warped window keeps c pixels of the image
around it on every side: the window is enlarged by s / (s − 2c), s being the extent of the (square) input, and what
lies outside the image is filled with the mean.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from caffe.classifier import image_transformer
from caffe.images import load_image, resize_image
from caffe.net import FilePath, Net
from poseidon.errors import UsageError
from poseidon.spec.caffe_pb2 import TEST

Window = Sequence[int] | np.ndarray


class Detector(Net):
    def __init__(
        self,
        model_file: FilePath,
        pretrained_file: FilePath | None = None,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        context_pad: int | None = None,
    ) -> None:
        super().__init__(model_file, TEST, weights=pretrained_file)
        self.transformer = image_transformer(self, mean, input_scale, raw_scale, channel_swap)
        self.configure_crop(context_pad)

    def detect_windows(self, images_windows: Iterable[tuple[str, Sequence[Window]]]) -> list[dict[str, Any]]:
        """For (image file, windows) pairs: one {"window", "prediction", "filename"} per window."""
        found: list[dict[str, Any]] = []
        crops = []
        name = self.inputs[0]
        for filename, windows in images_windows:
            image = load_image(filename)
            for window in windows:
                found.append({"window": window, "filename": filename})
                crops.append(self.transformer.preprocess(name, self.crop(image, window)))
        if not crops:
            return []
        outputs = self.forward_all(None, **{name: np.stack(crops)})[self.outputs[0]]
        for entry, output in zip(found, outputs, strict=True):
            # A net whose last layers are convolutional gives classes x 1 x 1.
            entry["prediction"] = output.reshape(-1) if output.size == max(output.shape, default=1) else output
        return found

    def detect_selective_search(self, image_fnames: Iterable[str]) -> list[dict[str, Any]]:
        """`detect_windows` on the proposals of Selective Search, which is a package of its own (and needs MATLAB)."""
        try:
            import selective_search_ijcv_with_python as selective_search
        except ImportError:
            raise UsageError(
                "detect_selective_search needs the module selective_search_ijcv_with_python on the Python path; "
                "with windows of your own, call detect_windows"
            ) from None
        names = [os.path.abspath(name) for name in image_fnames]
        return self.detect_windows(list(zip(names, selective_search.get_windows(names), strict=True)))

    def configure_crop(self, context_pad: int | None) -> None:
        """Sets how much of the surroundings a window gets, and what stands for what lies outside the image."""
        name = self.inputs[0]
        channels, height, width = self.blobs[name].shape[1:]
        self.crop_dims = np.array([height, width, channels])
        self.context_pad = context_pad
        mean = np.zeros((channels, 1, 1), np.float32)
        if context_pad and name in self.transformer.mean:
            mean = self.transformer.mean[name].astype(np.float32)
            if name in self.transformer.channel_swap:
                mean = mean[np.argsort(self.transformer.channel_swap[name])]
            if name in self.transformer.raw_scale:
                mean = mean / self.transformer.raw_scale[name]
        self.crop_mean = np.broadcast_to(mean.transpose(1, 2, 0), self.crop_dims)

    def crop(self, im: np.ndarray, window: Window) -> np.ndarray:
        """The window's pixels; with context, at the size of the net's input."""
        top, left, bottom, right = (int(n) for n in window)
        if not self.context_pad:
            return im[top:bottom, left:right]
        size = int(self.crop_dims[1])
        scale = size / (size - 2.0 * self.context_pad)
        centre = np.array([(top + bottom + 1) / 2, (left + right + 1) / 2])
        half = np.array([bottom - top + 1, right - left + 1]) / 2 * scale
        low, high = np.round(centre - half), np.round(centre + half)
        per_pixel = size / (high - low + 1)
        offset = np.round(np.maximum(0, -low) * per_pixel).astype(int)
        limit = np.array(im.shape[:2])
        low, high = np.clip(low, 0, limit), np.clip(high, 0, limit)
        extent = np.minimum(np.round((high - low + 1) * per_pixel).astype(int), size - offset)
        (y, x), (y_end, x_end) = low.astype(int), high.astype(int)
        made = self.crop_mean.astype(np.float32)
        made[offset[0] : offset[0] + extent[0], offset[1] : offset[1] + extent[1]] = resize_image(
            im[y:y_end, x:x_end], extent
        )
        return made
