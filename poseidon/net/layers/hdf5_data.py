"""HDF5Data: batches of rows from HDF5 files; each top is the dataset of its name.

    source       a text file that lists the HDF5 files
    top i        batch_size × the extents of a row of dataset i

Files and rows go round and round; a batch may span files, or be larger than all of them. With `shuffle` each round has
its own order of files, and of rows within a file. There is no transform_param: what is stored is what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from poseidon.data.hdf5 import Hdf5Rows
from poseidon.net.draws import key_of
from poseidon.net.layer import Layer, Shape, at_least, exactly
from poseidon.net.registry import register


@register("HDF5Data")
class HDF5Data(Layer):
    bottoms = exactly(0)
    tops = at_least(1)

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.hdf5_data_param
        if self.spec.HasField("transform_param"):
            raise self.error("does not transform data; take transform_param out, or store transformed data")
        if options.batch_size < 1:
            raise self.error("hdf5_data_param.batch_size must be given and at least 1")
        if not options.source:
            raise self.error("hdf5_data_param.source must name a text file that lists HDF5 files")
        self.rows = Hdf5Rows(
            options.source,
            list(self.spec.top),
            shuffle_seed=self._shuffle_seed(),
            dtype=np.float64 if self.context.dtype == torch.float64 else np.float32,
        )

    @property
    def batch_size(self) -> int:
        return self.spec.hdf5_data_param.batch_size

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [(self.rows.share.num_samples(self.batch_size), *shape) for shape in self.rows.row_shapes]

    def shard(self, rank: int, num_workers: int, *, whole_batches: bool = False, counts: tuple[int, ...] = ()) -> None:
        """Which of the rows are this worker's."""
        self.rows.shard(rank, num_workers, whole_batches=whole_batches, counts=counts)

    def position(self) -> dict[str, int]:
        """For a snapshot: batches handed out so far end before this row; the same on all workers."""
        return {"sample": self.rows.position}

    def seek(self, position: dict[str, int]) -> None:
        """Goes on from there, shuffled by the net's present seed."""
        self.rows.seek(int(position["sample"]), self._shuffle_seed())

    def _shuffle_seed(self) -> int | None:
        shuffles = self.spec.hdf5_data_param.shuffle
        return key_of(self.context.draws.seed, "hdf5", self.name) if shuffles else None

    def forward(self) -> tuple[Tensor, ...]:
        batch = self.rows.take(self.batch_size)
        return tuple(torch.from_numpy(array).to(self.context.device, self.context.dtype) for array in batch)
