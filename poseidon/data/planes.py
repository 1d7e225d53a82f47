"""PlaneWriter: planes of pixels into planes of floats in the batch, out = (pixels − mean) · scale.

Interleaved images are first dealt into planes, as bytes, which is cheap. Then each plane of bytes is written in one
pass: through a table of 256 results when the mean is a number, by a subtraction when it is an image. What is left is
the time the memory needs to take the floats. (Converting and dealing at once, a strided read, takes half as long again
in NumPy and in PyTorch.)

`mean` lies as `out` does, so when `mirrored` only the pixels are swapped.
"""

from __future__ import annotations

import threading

import cv2
import numpy as np

_BYTES = np.arange(256)
# Plane by plane is worth its calls for the few large planes of an image, not for hundreds of small ones.
_MOST_IMAGE_CHANNELS = 4


class PlaneWriter:
    """`mean_values` are subtracted where no mean image is given: one for all channels, or one each."""

    def __init__(self, scale: float = 1.0, mean_values: tuple[float, ...] = ()) -> None:
        self._scale = scale
        self._mean_values = mean_values
        self._tables = {
            np.dtype(dtype): [(_BYTES.astype(dtype) - dtype(mean)) * dtype(scale) for mean in mean_values or (0.0,)]
            for dtype in (np.float32, np.float64)
        }
        self._scratch = threading.local()

    def deal(self, image: np.ndarray) -> np.ndarray:
        """The planes of an interleaved image of bytes; valid until this thread deals the next one."""
        height, width, num_channels = image.shape
        if num_channels == 1:
            return image.reshape(1, height, width)
        planes = self._memory("planes", (num_channels, height, width), image.dtype)
        cv2.split(image, list(planes))
        return planes

    def write(self, planes: np.ndarray, mean: np.ndarray | None, mirrored: bool, out: np.ndarray) -> None:
        """`planes` (bytes or floats), `mean` and `out` of shape (C, H, W)."""
        if planes.dtype != np.uint8 or len(planes) > _MOST_IMAGE_CHANNELS:
            self._write_any(planes[:, :, ::-1] if mirrored else planes, mean, out)
            return
        if mirrored:
            flipped = self._memory("flipped", planes.shape, planes.dtype)
            for plane, into in zip(planes, flipped, strict=True):
                cv2.flip(plane, 1, dst=into)
            planes = flipped
        if mean is None:
            self._write_by_table(planes, out)
        else:
            depth = cv2.CV_64F if out.dtype == np.float64 else cv2.CV_32F
            for plane, under, into in zip(planes, mean, out, strict=True):
                cv2.subtract(plane, under, dst=into, dtype=depth)
            self._multiply(out)

    def _write_by_table(self, planes: np.ndarray, out: np.ndarray) -> None:
        if not self._mean_values and self._scale == 1:
            np.copyto(out, planes)
            return
        tables = self._tables[out.dtype]
        for channel, (plane, into) in enumerate(zip(planes, out, strict=True)):
            cv2.LUT(plane, tables[channel % len(tables)], dst=into)

    def _write_any(self, planes: np.ndarray, mean: np.ndarray | None, out: np.ndarray) -> None:
        np.copyto(out, planes)
        if mean is None and self._mean_values:
            mean = np.array(self._mean_values, out.dtype).reshape(-1, 1, 1)
        if mean is not None:
            np.subtract(out, mean, out=out)
        self._multiply(out)

    def _multiply(self, out: np.ndarray) -> None:
        if self._scale != 1:
            np.multiply(out, out.dtype.type(self._scale), out=out)

    def _memory(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Memory of this thread, kept from record to record."""
        array = getattr(self._scratch, name, None)
        if array is None or array.shape != shape or array.dtype != dtype:
            array = np.empty(shape, dtype)
            setattr(self._scratch, name, array)
        return array
