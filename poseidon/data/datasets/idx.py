"""IDX: the format of MNIST and of the data sets made to replace it.

    images    2051, number of images, rows, columns, then one byte per pixel, row by row
    labels    2049, number of labels, then one byte per label

All numbers are 32 bits, highest byte first. Four files make a data set: {train,t10k}-{images-idx3,labels-idx1}-ubyte,
here with their names as they are in circulation (also `train-images.idx3-ubyte`, also .gz).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from poseidon.data.datasets.images import Bytes, LabelledImages, Splits
from poseidon.data.datasets.original import candidates, opened, pick, read_at_most
from poseidon.errors import DataError

IMAGES_MAGIC = 2051
LABELS_MAGIC = 2049
# MNIST's largest file has 47 MB; what promises more than this is not one of its kind.
_MOST_BYTES = 1 << 32


def read_idx_splits(sources: Sequence[Path]) -> Splits:
    """The data set in these folders or files."""
    return Splits(_read_split(sources, "train"), _read_split(sources, "t10k"))


def _read_split(sources: Sequence[Path], split: str) -> LabelledImages:
    def find(kind: str) -> Path:
        def is_it(name: str) -> bool:
            return name.replace(".", "-").removesuffix("-gz") == f"{split}-{kind}-ubyte"

        return pick(sources, f"{split}-{kind}-ubyte", candidates(sources), is_it)

    image_path, label_path = find("images-idx3"), find("labels-idx1")
    images, labels = read_idx_images(image_path), read_idx_labels(label_path)
    if len(images) != len(labels):
        raise DataError(
            f"{label_path}: expected {len(images)} labels, one per image of {image_path.name}, got {len(labels)}; "
            f"the two files do not belong together"
        )
    return LabelledImages(images[:, np.newaxis], labels)


def read_idx_images(path: Path) -> Bytes:
    """The images, of shape (number, rows, columns)."""
    return _read_idx(path, IMAGES_MAGIC, "images", 3)


def read_idx_labels(path: Path) -> Bytes:
    return _read_idx(path, LABELS_MAGIC, "labels", 1)


def _read_idx(path: Path, magic: int, what: str, num_axes: int) -> Bytes:
    with opened(path) as file:
        found, *shape = _numbers(file, 1 + num_axes, path)
        if found != magic:
            other = {IMAGES_MAGIC: ", which are images", LABELS_MAGIC: ", which are labels"}.get(found, "")
            raise DataError(
                f"{path}: expected {what} in IDX format, beginning with {magic}, got {found}{other}; "
                f"is it the right file?"
            )
        count = int(np.prod(shape, dtype=object))
        if not 0 < count <= _MOST_BYTES:
            raise DataError(f"{path}: promises {' x '.join(map(str, shape))} {what}; the file is damaged")
        data = read_at_most(file, count + 1)
    if len(data) != count:
        got = f"only {len(data)}" if len(data) < count else "more"
        raise DataError(
            f"{path}: expected {count} bytes of {what} ({' x '.join(map(str, shape))}), got {got}; "
            f"download or copy the file again"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def _numbers(file: IO[bytes], count: int, path: Path) -> tuple[int, ...]:
    header = read_at_most(file, 4 * count)
    if len(header) < 4 * count:
        raise DataError(f"{path}: ends in its header, after {len(header)} bytes; download or copy the file again")
    return struct.unpack(f">{count}I", header)
