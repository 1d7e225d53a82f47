"""Transformer: a record into its place in the batch, out = (x − mean) · scale.

    crop_size    TRAIN: anywhere in the image; TEST: the centre, (H − crop) / 2 rounded down
    mirror       left and right swapped with probability ½, in both phases, as Caffe does
    mean_file    the mean at the pixel's own place in the whole image, before mirroring
    mean_value   one for all channels, or one per channel
    scale        after the mean

The random choices of a sample are read off its 63-bit key: they depend on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poseidon.data.planes import PlaneWriter
from poseidon.data.source import Record
from poseidon.errors import DataError

Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class TransformOptions:
    """As in transform_param; `mean` is of shape (C, H, W), and `random_crop` is true in TRAIN phase."""

    crop_size: int = 0
    random_crop: bool = False
    mirror: bool = False
    scale: float = 1.0
    mean: np.ndarray | None = None
    mean_values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of an image that is used, and whether it is mirrored."""

    top: int
    left: int
    height: int
    width: int
    mirrored: bool

    @property
    def rows(self) -> slice:
        return slice(self.top, self.top + self.height)

    @property
    def columns(self) -> slice:
        return slice(self.left, self.left + self.width)


class Transformer:
    """See the module's docstring. Used by several threads at once."""

    def __init__(self, options: TransformOptions) -> None:
        self._options = options
        self._writer = PlaneWriter(options.scale, options.mean_values)
        # Also contiguous when mirrored: OpenCV takes no negative strides.
        self._mirrored_mean = None if options.mean is None else np.ascontiguousarray(options.mean[:, :, ::-1])

    @property
    def draws(self) -> bool:
        """Whether anything depends on a sample's key."""
        return self._options.mirror or bool(self._options.crop_size and self._options.random_crop)

    def shape(self, record: Record) -> Shape:
        """Shape (C, H, W) that the record will have in the batch; checks that it can be transformed at all."""
        num_channels, height, width = shape = record.shape
        crop = self._options.crop_size
        if min(height, width) < crop:
            raise DataError(
                f"{record.where}: crop_size {crop} needs at least {crop} x {crop} pixels, got {height} x {width}"
            )
        self._check_mean(shape, record.where)
        return (num_channels, crop, crop) if crop else shape

    def cut(self, record: Record, key: int) -> Cut:
        """What the key of a sample draws for it."""
        _, height, width = record.shape
        crop = self._options.crop_size
        key, coin = divmod(key, 2)
        mirrored = self._options.mirror and bool(coin)
        if not crop:
            return Cut(0, 0, height, width, mirrored)
        if not self._options.random_crop:
            return Cut((height - crop) // 2, (width - crop) // 2, crop, crop, mirrored)
        key, top = divmod(key, height - crop + 1)
        return Cut(top, key % (width - crop + 1), crop, crop, mirrored)

    def write(self, record: Record, key: int, out: np.ndarray) -> None:
        """Fills `out`, of shape (C, H, W), which must be this record's own shape."""
        shape = self.shape(record)
        if shape != out.shape:
            raise DataError(
                f"{record.where}: expected {_text(out.shape)} (channels x height x width) as the first record of its "
                f"batch, got {_text(shape)}; records of a batch have one shape unless they are cropped or resized to it"
            )
        cut = self.cut(record, key)
        planes = record.pixels if record.planar else self._writer.deal(record.pixels)
        self._writer.write(planes[:, cut.rows, cut.columns], self._mean(cut), cut.mirrored, out)

    def _mean(self, cut: Cut) -> np.ndarray | None:
        """The mean image under the pixels, as they lie in the batch."""
        if self._mirrored_mean is None or self._options.mean is None:
            return None
        if not cut.mirrored:
            return self._options.mean[:, cut.rows, cut.columns]
        right = self._mirrored_mean.shape[2] - cut.left
        return self._mirrored_mean[:, cut.rows, right - cut.width : right]

    def _check_mean(self, shape: Shape, where: str) -> None:
        mean, values = self._options.mean, self._options.mean_values
        if mean is not None and mean.shape != shape:
            raise DataError(
                f"{where}: expected {_text(mean.shape)} (channels x height x width) as the mean_file has, "
                f"got {_text(shape)}"
            )
        if len(values) not in (0, 1, shape[0]):
            raise DataError(
                f"{where}: has {shape[0]} channels, but transform_param has {len(values)} mean_value; "
                f"give one for all, or one per channel"
            )


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
