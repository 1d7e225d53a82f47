"""Databases as Caffe's converters write them: an LMDB of Datums, keyed by number; and the mean image of one.

Numbers have leading zeros (MNIST's converter: 8 digits, CIFAR's: 5), so that the order of the keys is theirs.
"""

from __future__ import annotations

from pathlib import Path

import lmdb
import numpy as np

from poseidon.data.datasets.images import LabelledImages
from poseidon.data.mean import write_mean as write_mean_image
from poseidon.data.report import Report
from poseidon.errors import DataError
from poseidon.spec import array_to_datum

# Committed in parts, so that a large data set is not held in memory a second time.
_RECORDS_PER_COMMIT = 5000


def write_lmdb(path: Path, images: LabelledImages, key_digits: int, report: Report) -> None:
    """A new LMDB; `path` must not exist."""
    # A record takes its bytes, and may be alone on a page of 4096; the rest is the tree above it.
    map_size = (1 << 24) + 2 * len(images) * (4096 + images.pixels[0].nbytes)
    what = f"write {path.name}"
    try:
        with lmdb.open(str(path), map_size=map_size, lock=False) as environment:
            for start in range(0, len(images), _RECORDS_PER_COMMIT):
                stop = min(start + _RECORDS_PER_COMMIT, len(images))
                with environment.begin(write=True) as transaction:
                    for number in range(start, stop):
                        datum = array_to_datum(images.pixels[number], int(images.labels[number]))
                        key = str(number).zfill(key_digits).encode()
                        transaction.put(key, datum.SerializeToString(), append=True)
                report(what, stop, len(images))
    except lmdb.Error as problem:
        raise DataError(f"{path.name}: cannot be written ({problem}); is the disk full?") from None


def write_mean(path: Path, images: LabelledImages) -> None:
    """The mean image, bit for bit as compute_image_mean writes it: it adds up in float32, which is exact (below 2²⁴)
    for up to 65 000 images."""
    total = images.pixels.sum(axis=0, dtype=np.uint64).astype(np.float32)
    write_mean_image(total / np.float32(len(images)), path)
