"""image_mean: the mean image of a database, as Caffe's compute_image_mean writes it, bit for bit.

    sum_i = x_1i + x_2i + …      in float32, in the order of the records
    mean_i = sum_i / N           in float32
    mean_c = mean over the pixels of channel c, added up in float32

An encoded Datum is decoded as it was stored. The result is a binary BlobProto with the four extents of old (num 1,
channels, height, width), which every Caffe reads. Sums of bytes are exact up to 65 000 records; beyond that float32
rounds, as it does in Caffe.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poseidon.data.database import open_database
from poseidon.data.datum import DatumSource
from poseidon.data.mean import write_mean
from poseidon.errors import DataError
from poseidon.log_line import number
from poseidon.tools.teller import Teller

_SOURCE = "compute_image_mean.cpp"
_TOLD_EVERY = 10000


@dataclass(frozen=True, slots=True)
class ImageMean:
    """`image` is channels × height × width; `channels` the mean of each channel."""

    image: np.ndarray
    channels: tuple[float, ...]
    num_records: int


def compute_image_mean(database: str, backend: str, target: str | None, tell: Teller) -> ImageMean:
    """The mean of all records, written to `target` if one is given."""
    source = DatumSource(open_database(database, backend))
    try:
        total = _sum(source, tell)
    finally:
        source.close()
    image = total / np.float32(len(source))
    if target is not None:
        tell.say(f"{_SOURCE}:108", f"Write to {target}")
        write_mean(image, target)
    sums = [np.cumsum(plane.ravel(), dtype=np.float32)[-1] for plane in image]
    means = tuple(float(value / np.float32(image[0].size)) for value in sums)
    tell.say(f"{_SOURCE}:114", f"Number of channels: {len(means)}")
    for channel, mean in enumerate(means):
        tell.say(f"{_SOURCE}:119", f"mean_value channel [{channel}]: {number(mean)}")
    return ImageMean(image, means, len(source))


def _sum(source: DatumSource, tell: Teller) -> np.ndarray:
    total: np.ndarray | None = None
    for index in range(len(source)):
        record = source.get(index)
        pixels = record.pixels if record.planar else record.pixels.transpose(2, 0, 1)
        if total is None:
            if not record.planar:
                tell.say(f"{_SOURCE}:54", "Decoding Datum")
            total = np.zeros(pixels.shape, np.float32)
            tell.say(f"{_SOURCE}:70", "Starting iteration")
        if pixels.shape != total.shape:
            raise DataError(
                f"{record.where}: Incorrect data field size: {_text(pixels.shape)}, expected {_text(total.shape)} like "
                "the first record; a mean image needs records of one size (convert them with --resize_height and "
                "--resize_width)"
            )
        np.add(total, pixels, out=total, casting="same_kind")
        done = index + 1
        tell.progress("adding up", done, len(source))
        if done % _TOLD_EVERY == 0:
            tell.say(f"{_SOURCE}:95", f"Processed {done} files.")
    assert total is not None, "a DatumSource has at least one record"
    if len(source) % _TOLD_EVERY:
        tell.say(f"{_SOURCE}:101", f"Processed {len(source)} files.")
    return total


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
