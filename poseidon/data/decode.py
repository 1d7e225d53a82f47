"""Decoding: bytes of an image file into H × W × C bytes, channels in OpenCV's order (blue, green, red).

    color True    three channels, gray ones repeated          (ImageData's is_color, transform_param's force_color)
    color False   one channel, Y = 0.299 R + 0.587 G + 0.114 B   (force_gray)
    color None    as stored: 1, 3 or 4 channels               (an encoded Datum without either)

Resizing is bilinear with OpenCV's pixel centres, as in Caffe's tools. Depths other than 8 bits are refused, as Caffe
does, since the pixels would silently change their scale.
"""

from __future__ import annotations

import cv2
import numpy as np

from poseidon.data.source import Buffer
from poseidon.errors import DataError


def decode(encoded: Buffer, color: bool | None, where: str) -> np.ndarray:
    """The image as uint8 of shape (height, width, channels)."""
    flag = cv2.IMREAD_UNCHANGED if color is None else cv2.IMREAD_COLOR if color else cv2.IMREAD_GRAYSCALE
    try:
        # OpenCV asserts on an empty buffer, and on sizes it considers an attack.
        pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), flag) if encoded else None
    except cv2.error as problem:
        raise DataError(f"{where}: OpenCV cannot decode this image ({problem.err})") from None
    if pixels is None:
        raise DataError(
            f"{where}: not an image OpenCV can decode ({len(encoded)} bytes{_first_bytes(encoded)}); "
            f"the file is damaged, truncated or of another kind"
        )
    if pixels.dtype != np.uint8:
        raise DataError(
            f"{where}: expected 8 bits per channel, got {pixels.dtype}; convert the image, or force a color"
        )
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]


def resize(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear, keeps the number of channels."""
    if pixels.shape[:2] == (height, width):
        return pixels
    resized = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
    return resized if resized.ndim == 3 else resized[:, :, np.newaxis]


def _first_bytes(encoded: Buffer) -> str:
    return f", beginning with {bytes(encoded[:8]).hex(' ')}" if encoded else ""
