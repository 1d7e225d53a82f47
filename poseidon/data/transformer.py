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
        self._writer = PlaneWriter(options.scale)
        # The memory is H × W × C and contiguous, also when mirrored: OpenCV takes no negative strides.
        if options.mean is not None:
            self._image_mean = np.ascontiguousarray(options.mean.transpose(1, 2, 0))
            self._mirrored_image_mean = np.ascontiguousarray(self._image_mean[:, ::-1])

    def shape(self, record: Record) -> tuple[int, int, int]:
        """Shape (C, H, W) that the record will have in the batch; checks that it can be transformed at all."""
        crop = self._options.crop_size
        if min(record.height, record.width) < crop:
            raise DataError(
                f"{record.where}: crop_size {crop} needs at least {crop} x {crop} pixels, "
                f"got {record.height} x {record.width}"
            )
        self._check_mean(record)
        return record.num_channels, crop or record.height, crop or record.width

    def cut(self, record: Record, key: int) -> Cut:
        """What the key of a sample draws for it."""
        crop = self._options.crop_size
        key, coin = divmod(key, 2)
        mirrored = self._options.mirror and bool(coin)
        if not crop:
            return Cut(0, 0, record.height, record.width, mirrored)
        free_rows, free_columns = record.height - crop, record.width - crop
        if not self._options.random_crop:
            return Cut(free_rows // 2, free_columns // 2, crop, crop, mirrored)
        key, top = divmod(key, free_rows + 1)
        return Cut(top, key % (free_columns + 1), crop, crop, mirrored)

    def write(self, record: Record, key: int, out: np.ndarray) -> None:
        """Fills `out`, of shape (C, H, W), which must be this record's own shape."""
        shape = self.shape(record)
        if shape != out.shape:
            raise DataError(
                f"{record.where}: expected {_text(out.shape)} (channels x height x width) as the first record of its "
                f"batch, got {_text(shape)}; records of a batch have one shape unless they are cropped or resized to it"
            )
        cut = self.cut(record, key)
        if record.planar:
            pixels = record.pixels[:, cut.rows, cut.columns]
            self._writer.write_planar(pixels, self._planar_mean(cut), cut.mirrored, out)
        else:
            pixels = record.pixels[cut.rows, cut.columns]
            self._writer.write_interleaved(pixels, self._interleaved_mean(cut, shape[0]), cut.mirrored, out)

    def _planar_mean(self, cut: Cut) -> np.ndarray | None:
        if self._options.mean is not None:
            under = self._options.mean[:, cut.rows, cut.columns]
            return under[:, :, ::-1] if cut.mirrored else under
        values = self._options.mean_values
        return np.array(values, np.float32).reshape(-1, 1, 1) if values else None

    def _interleaved_mean(self, cut: Cut, num_channels: int) -> np.ndarray | None:
        if self._options.mean is not None:
            if not cut.mirrored:
                return self._image_mean[cut.rows, cut.columns]
            right = self._image_mean.shape[1] - cut.left
            return self._mirrored_image_mean[cut.rows, right - cut.width : right]
        values = self._options.mean_values
        return self._writer.constant(values, (cut.height, cut.width, num_channels)) if values else None

    def _check_mean(self, record: Record) -> None:
        mean, values = self._options.mean, self._options.mean_values
        shape = (record.num_channels, record.height, record.width)
        if mean is not None and mean.shape != shape:
            raise DataError(
                f"{record.where}: expected {_text(mean.shape)} (channels x height x width) as the mean_file has, "
                f"got {_text(shape)}"
            )
        if len(values) not in (0, 1, shape[0]):
            raise DataError(
                f"{record.where}: has {shape[0]} channels, but transform_param has {len(values)} mean_value; "
                f"give one for all, or one per channel"
            )


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
