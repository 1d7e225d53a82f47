"""HostBlob: a blob with arrays of its own, for user code where no net's blobs are at hand.

Arrays are made (zeros) when first looked at. `reshape` keeps the values as far as the memory goes, as Caffe does.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from poseidon.net.array_blob import ArrayBlob, extents


class HostBlob(ArrayBlob):
    """`dtype` is that of the arrays: torch.float32 or torch.float64."""

    def __init__(self, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> None:
        self._shape = tuple(int(n) for n in shape)
        self._dtype = dtype
        self._data: np.ndarray | None = None
        self._diff: np.ndarray | None = None

    # -- what user code sees ----------------------------------------------------------------------------------------
    @property
    def data(self) -> np.ndarray:
        if self._data is None:
            self._data = torch.zeros(self._shape, dtype=self._dtype).numpy()
        return self._data

    @property
    def diff(self) -> np.ndarray:
        if self._diff is None:
            self._diff = torch.zeros(self._shape, dtype=self._dtype).numpy()
        return self._diff

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def reshape(self, *dims: int) -> None:
        shape = extents(dims)
        if shape != self._shape:
            self._data, self._diff = _resized(self._data, shape), _resized(self._diff, shape)
            self._shape = shape

    @property
    def is_written(self) -> bool:
        """True once somebody has looked at the data, and may have written."""
        return self._data is not None

    # -- to and from tensors ----------------------------------------------------------------------------------------
    def show(self, data: Tensor, diff: Tensor | None = None) -> None:
        """Takes a tensor as data (its own memory where that is possible) and a copy of another as diff."""
        self._shape = tuple(data.shape)
        self._data = self._array(data)
        self._diff = None if diff is None else self._array(diff).copy()

    def write_back(self, shown: Tensor) -> None:
        """Carries what user code wrote into the data over to the tensor shown, where that is other memory."""
        if self._data is not None and self._data.ctypes.data != shown.data_ptr():
            now = self.data_tensor(shown)
            if not torch.equal(now, shown):
                shown.detach().copy_(now)

    def data_tensor(self, like: Tensor) -> Tensor:
        """A copy of the data, where and of the type `like` is."""
        return torch.from_numpy(self.data.copy()).to(like.device, like.dtype)

    def diff_tensor(self, like: Tensor) -> Tensor:
        """A copy of the diff, where and of the type `like` is."""
        return torch.from_numpy(self.diff.copy()).to(like.device, like.dtype)

    def _array(self, tensor: Tensor) -> np.ndarray:
        return tensor.detach().to("cpu", self._dtype).contiguous().numpy()


class BlobList(list[ArrayBlob]):
    """The parameter blobs of a layer written in Python; setup adds to them."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self._dtype = dtype

    def add_blob(self, *dims: int) -> None:
        self.append(HostBlob(tuple(dims), self._dtype))


def _resized(old: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    if old is None:
        return None
    new = np.zeros(shape, old.dtype)
    kept = min(old.size, new.size)
    new.reshape(-1)[:kept] = old.reshape(-1)[:kept]
    return new
