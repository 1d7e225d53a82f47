"""Batches: from the number of a first sample to the tensors of a batch.

    data     N × C × H × W, the shape of its first record, as in Caffe; all others must have it too
    label    N

Making a batch is a pure function of that number, so batches can be made ahead, on any thread and in any order.

Memory is reused: a batch's memory returns to its pool when the last tensor that shares it is gone, which is when the
net has finished its backward pass and nobody has kept the blob. Whoever keeps it, keeps it: nothing is overwritten
under a tensor in use. (Fresh memory would cost the operating system about as much as the transformation.)
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from poseidon.data.shard import Share, Stream
from poseidon.data.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Batch:
    data: Tensor
    label: Tensor


class BatchMemory:
    """A pool of equally typed arrays; see the module's docstring."""

    def __init__(self, dtype: torch.dtype) -> None:
        # Half precision is converted on the way to the net, where labels keep their own type.
        self.dtype = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
        # A deque's ends are safe to use from any thread, and inside a finalizer that may run at any moment.
        self._free: deque[np.ndarray] = deque()

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        """An array with undefined contents. A tensor made from it keeps it; slices of the array itself do not."""
        num_elems = math.prod(shape)
        try:
            memory = self._free.popleft()
        except IndexError:
            memory = None
        if memory is None or memory.size < num_elems:
            memory = np.empty(num_elems, self.dtype)
        array = memory[:num_elems].reshape(shape)
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array


class RecordBatches:
    """Batches of the records of a stream. `sample_key` gives a sample's 63-bit key for its random choices."""

    def __init__(
        self,
        stream: Stream,
        transformer: Transformer,
        share: Share,
        batch_size: int,
        sample_key: Callable[[int], int],
        memory: BatchMemory,
    ) -> None:
        self._stream = stream
        self._transformer = transformer
        self._share = share
        self._batch_size = batch_size
        # Making a key takes as long as copying a small record.
        self._sample_key = sample_key if transformer.draws else _no_key
        self._memory = memory

    def make(self, start: int) -> Batch:
        """This worker's part of the batch that starts at sample `start`."""
        samples = self._share.samples(start, self._batch_size)
        labels = np.empty(len(samples), self._memory.dtype)
        data: np.ndarray | None = None
        self._stream.announce(samples)
        for i, sample in enumerate(samples):
            record = self._stream.record(sample)
            if data is None:
                data = self._memory.take((len(samples), *self._transformer.shape(record)))
            self._transformer.write(record, self._sample_key(sample), data[i])
            labels[i] = record.label
        assert data is not None
        return Batch(torch.from_numpy(data), torch.from_numpy(labels))


def _no_key(sample: int) -> int:
    return 0
