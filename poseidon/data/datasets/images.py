"""LabelledImages: what every reader of a data set returns.

pixels    N × C × H × W bytes, channels in the order of the original files (CIFAR: red, green, blue, as in Caffe)
labels    N bytes
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class LabelledImages:
    pixels: Bytes
    labels: Bytes

    def __post_init__(self) -> None:
        assert self.pixels.ndim == 4
        assert self.labels.shape == self.pixels.shape[:1]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Splits:
    """The two halves of a data set."""

    train: LabelledImages
    test: LabelledImages
