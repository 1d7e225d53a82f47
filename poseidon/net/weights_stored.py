"""What a weights file holds, whatever its format: layers by name, each with its blobs by index, read when asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from poseidon.net.layer import Shape


class StoredBlob(Protocol):
    """One blob in a file, of known shape and not read yet."""

    @property
    def shape(self) -> Shape: ...

    def fits(self, shape: Shape) -> bool:
        """Whether a parameter of this shape can take the values."""

    def read(self, what: str) -> np.ndarray:
        """The values, float32 or float64, in C order; `what` names the blob in a WeightsError."""


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer in a file, its blobs by index as text. With `omits_shared` a shared blob is stored at its owner only."""

    name: str
    blobs: Mapping[str, StoredBlob]
    omits_shared: bool = False
