"""WindowBatches: windows of images, drawn at random.

Of a batch of N the last ⌊N · fg_fraction⌋ are drawn from the foreground, the others from the background, each window
with equal probability, warped (warp.py) and written as (x − mean) · scale. What a window does not cover of its square
stays 0. A mean_file is centred: of its image the square that begins (width − crop_size) / 2 from the left and the top.

Caffe 1.0 loses `scale` for this layer (it reads the field that its own upgrade has emptied); here it is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from poseidon.data.batch import Batch, BatchMemory
from poseidon.data.planes import PlaneWriter
from poseidon.data.shard import Share
from poseidon.data.warp import WarpOptions, warp_of
from poseidon.data.window_file import NUM_CHANNELS, WindowFile
from poseidon.errors import DataError


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """As in window_data_param and transform_param; `mean` is of shape (C, H, W), at least crop_size large."""

    warp: WarpOptions
    fg_fraction: float = 0.25
    mirror: bool = False
    scale: float = 1.0
    mean: np.ndarray | None = None
    mean_values: tuple[float, ...] = ()


class WindowBatches:
    """Batches of windows; `sample_key` gives a sample's 63-bit key for its random choices."""

    def __init__(
        self,
        windows: WindowFile,
        options: WindowOptions,
        share: Share,
        batch_size: int,
        sample_key: Callable[[int], int],
        memory: BatchMemory,
    ) -> None:
        self._windows = windows
        self._options = options
        self._share = share
        self._batch_size = batch_size
        self._sample_key = sample_key
        self._memory = memory
        self._writer = PlaneWriter(options.scale, options.mean_values)
        # Counted over all workers, so that they draw what one worker would for their whole batch.
        whole = share.batch_extent(batch_size)
        self._num_background = whole - int(np.float32(whole) * np.float32(options.fg_fraction))
        self._check_windows(whole)

    def make(self, start: int) -> Batch:
        """This worker's part of the batch that starts at sample `start`."""
        crop_size = self._options.warp.crop_size
        samples = self._share.samples(start, self._batch_size)
        data = self._memory.take((len(samples), NUM_CHANNELS, crop_size, crop_size))
        labels = np.empty(len(samples), self._memory.dtype)
        begin = self._share.begin(start, self._batch_size)
        for i, sample in enumerate(samples):
            is_background = sample - begin < self._num_background
            choices = self._windows.background if is_background else self._windows.foreground
            key, coin = divmod(self._sample_key(sample), 2)
            row = choices[key % len(choices)].tolist()
            labels[i] = row[1]
            self._write(row[0], (row[2], row[3], row[4], row[5]), self._options.mirror and bool(coin), data[i])
        return Batch(torch.from_numpy(data), torch.from_numpy(labels))

    def _write(self, image: int, box: tuple[int, int, int, int], mirrored: bool, out: np.ndarray) -> None:
        pixels = self._windows.pixels(image)
        height, width = pixels.shape[:2]
        warp = warp_of(box, (height, width), mirrored, self._options.warp)
        inside = 0 <= warp.x1 <= warp.x2 < width and 0 <= warp.y1 <= warp.y2 < height
        if not inside or min(warp.height, warp.width) < 1:
            raise DataError(
                f"{self._windows.images[image].where}: window {box} (x1, y1, x2, y2) does not lie in the image, "
                f"which has {height} x {width} pixels (height x width)"
            )
        cut = pixels[warp.y1 : warp.y2 + 1, warp.x1 : warp.x2 + 1]
        warped = cv2.resize(cut, (warp.width, warp.height), interpolation=cv2.INTER_LINEAR)
        if (warp.height, warp.width) != out.shape[1:]:
            out[...] = 0
        rows = slice(warp.pad_top, warp.pad_top + warp.height)
        columns = slice(warp.pad_left, warp.pad_left + warp.width)
        planes = self._writer.deal(warped)
        self._writer.write(planes, self._mean(rows, columns), mirrored, out[:, rows, columns])

    def _mean(self, rows: slice, columns: slice) -> np.ndarray | None:
        """The mean image under these pixels of the square."""
        mean = self._options.mean
        if mean is None:
            return None
        border = (mean.shape[2] - self._options.warp.crop_size) // 2
        return mean[:, border:, border:][:, rows, columns]

    def _check_windows(self, whole: int) -> None:
        for kind, count, rows in (
            ("background", self._num_background, self._windows.background),
            ("foreground", whole - self._num_background, self._windows.foreground),
        ):
            if count and not len(rows):
                raise DataError(
                    f"{self._windows.path}: has no {kind} window, but {count} of {whole} in a batch are drawn from "
                    f"them; look at fg_threshold, bg_threshold and fg_fraction"
                )
