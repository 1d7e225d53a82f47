"""PlaneWriter: pixels into planes of floats in the batch, out = (pixels − mean) · scale.

`out` is channels × height × width; `mean` lies as `out` does, so when `mirrored` only the pixels are swapped.

Interleaved bytes (H × W × C) go through a scratch image: one pass converts and subtracts into it, it stays in the
cache, and a second pass deals its channels into the batch. Doing both at once, a strided read, takes half as long again
in NumPy and in PyTorch. What is left is the time the memory needs to take 4 · C · H · W bytes.
"""

from __future__ import annotations

import threading

import cv2
import numpy as np

# cv2.flip and cv2.split work image by image: with more channels than an image has, one strided copy is faster.
_MOST_IMAGE_CHANNELS = 4


class PlaneWriter:
    """Writes pixels of one layout after the other; each thread has its own scratch memory."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self._scratch = threading.local()

    def write_interleaved(self, pixels: np.ndarray, mean: np.ndarray | None, mirrored: bool, out: np.ndarray) -> None:
        """`pixels` of shape (H, W, C), bytes, at most 4 channels; `mean` of the same shape, or None for zero."""
        num_channels, height, width = out.shape
        if mirrored:
            pixels = cv2.flip(pixels, 1, dst=self._memory("flipped", pixels.shape, pixels.dtype))
        image = self._memory("image", (height, width, num_channels), out.dtype)
        if mean is None:
            np.copyto(image, pixels.reshape(image.shape))
        else:
            depth = cv2.CV_64F if out.dtype == np.float64 else cv2.CV_32F
            image = cv2.subtract(pixels, mean, dst=image, dtype=depth)
        self._multiply(image)
        if num_channels == 1:
            np.copyto(out[0], image.reshape(height, width))
        else:
            cv2.split(image, list(out))

    def write_planar(self, pixels: np.ndarray, mean: np.ndarray | None, mirrored: bool, out: np.ndarray) -> None:
        """`pixels` of shape (C, H, W), bytes or floats; `mean` of a shape that broadcasts to it, or None for zero."""
        if mirrored:
            pixels = self._flipped_planes(pixels)
        np.copyto(out, pixels)
        if mean is not None:
            np.subtract(out, mean, out=out)
        self._multiply(out)

    def constant(self, values: tuple[float, ...], shape: tuple[int, int, int]) -> np.ndarray:
        """An image of shape (H, W, C) that holds one value everywhere, or one per channel."""
        image = self._memory("constant", shape, np.dtype(np.float32))
        if getattr(self._scratch, "constant_is", None) != (values, shape):
            image[...] = values
            self._scratch.constant_is = (values, shape)
        return image

    def _flipped_planes(self, pixels: np.ndarray) -> np.ndarray:
        if len(pixels) > _MOST_IMAGE_CHANNELS:
            return pixels[:, :, ::-1]
        flipped = self._memory("flipped", pixels.shape, pixels.dtype)
        for plane, into in zip(pixels, flipped, strict=True):
            cv2.flip(plane, 1, dst=into)
        return flipped

    def _multiply(self, values: np.ndarray) -> None:
        if self._scale != 1:
            np.multiply(values, self._scale, out=values)

    def _memory(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Memory of this thread, kept from record to record."""
        array = getattr(self._scratch, name, None)
        if array is None or array.shape != shape or array.dtype != dtype:
            array = np.empty(shape, dtype)
            setattr(self._scratch, name, array)
        return array
