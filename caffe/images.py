"""Images as arrays: height × width × channels, RGB, float32 in [0, 1], as scikit-image would load them.

`resize_image` samples without smoothing: pixel centres at (i + ½)·old/new − ½ for one or three channels, corners on
corners for any other number, edges repeated. Order 0 takes the nearest pixel, 1 interpolates linearly, a higher one
cubically.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import cv2
import numpy as np

from poseidon.errors import DataError

_LUMINANCE = (0.2125, 0.7154, 0.0721)


def load_image(filename: str | os.PathLike[str], color: bool = True) -> np.ndarray:
    """An image file as height × width × 3 (RGB), or × 1 with `color` False; float32 in [0, 1]."""
    name = os.fspath(filename)
    pixels = cv2.imread(name, cv2.IMREAD_UNCHANGED)
    if pixels is None:
        if not os.path.exists(name):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        raise DataError(f"{name}: is not an image that OpenCV can read")
    return image_of(pixels, color)


def image_of(pixels: np.ndarray, color: bool = True) -> np.ndarray:
    """What OpenCV has decoded (IMREAD_UNCHANGED), as `load_image` gives it."""
    image = pixels.astype(np.float32)
    if pixels.dtype.kind == "u":
        image /= 2 ** (8 * pixels.dtype.itemsize) - 1
    if image.ndim == 2:
        image = image[:, :, np.newaxis]
        return np.tile(image, (1, 1, 3)) if color else image
    image = np.ascontiguousarray(image[:, :, 2::-1])  # blue, green, red and perhaps alpha -> red, green, blue
    return image if color else (image @ np.array(_LUMINANCE, np.float32))[:, :, np.newaxis]


def resize_image(im: np.ndarray, new_dims: Sequence[int] | np.ndarray, interp_order: int = 1) -> np.ndarray:
    """An image in another size: `new_dims` is (height, width); see the top of the file for how."""
    height, width = (int(n) for n in new_dims)
    if interp_order > 1:
        planes = np.asarray(im, np.float32).reshape(*im.shape[:2], -1).transpose(2, 0, 1)
        resized = np.stack([cv2.resize(plane, (width, height), interpolation=cv2.INTER_CUBIC) for plane in planes], -1)
        return resized.reshape(height, width, *im.shape[2:])
    on_centres = im.ndim == 2 or im.shape[-1] in (1, 3)
    resized = np.asarray(im, np.float64)
    for axis, size in enumerate((height, width)):
        resized = _resampled(resized, _positions(im.shape[axis], size, on_centres), axis, interp_order)
    return resized.astype(np.float32)


def oversample(images: Sequence[np.ndarray] | np.ndarray, crop_dims: Sequence[int] | np.ndarray) -> np.ndarray:
    """Ten crops of each image: four corners, centre, and the mirror images of these five."""
    height, width = (int(n) for n in crop_dims)
    rows, columns, channels = images[0].shape
    bottom, right = rows - height, columns - width
    corners = [(0, 0), (0, right), (bottom, 0), (bottom, right), (int(bottom / 2), int(right / 2))]
    crops = np.empty((10 * len(images), height, width, channels), np.float32)
    for index, image in enumerate(images):
        five = crops[10 * index : 10 * index + 5]
        for place, (top, left) in zip(five, corners, strict=True):
            place[...] = image[top : top + height, left : left + width]
        crops[10 * index + 5 : 10 * index + 10] = five[:, :, ::-1]
    return crops


def _positions(old: int, new: int, on_centres: bool) -> np.ndarray:
    """Where the new pixels lie among the old ones."""
    if on_centres:
        places = (np.arange(new) + 0.5) * (old / new) - 0.5
    else:
        places = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0)
    return np.clip(places, 0, old - 1)


def _resampled(image: np.ndarray, places: np.ndarray, axis: int, order: int) -> np.ndarray:
    if order == 0:
        return image.take(np.floor(places + 0.5).astype(int).clip(0, image.shape[axis] - 1), axis)
    below = np.floor(places).astype(int)
    above = np.minimum(below + 1, image.shape[axis] - 1)
    weight = (places - below).reshape([-1 if a == axis else 1 for a in range(image.ndim)])
    return image.take(below, axis) * (1 - weight) + image.take(above, axis) * weight
