"""HDF5Output: writes its two bottoms to an HDF5 file, as the datasets `data` and `label`.

Both are written with four axes, N × C × H × W, missing ones as 1. The file is made when the net is built; every
forward pass replaces its contents with that pass's bottoms, and closes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.data.hdf5 import write_arrays
from poseidon.net.layer import Layer, Shape, exactly, text_of
from poseidon.net.registry import register


@register("HDF5Output")
class HDF5Output(Layer):
    bottoms = exactly(2)
    tops = exactly(0)

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        if not self.spec.hdf5_output_param.file_name:
            raise self.error("hdf5_output_param.file_name must be given")
        write_arrays(self.spec.hdf5_output_param.file_name, {})

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        data, label = bottom_shapes
        for shape in bottom_shapes:
            if len(shape) > 4:
                raise self.error(f"writes blobs of at most 4 axes, got shape {text_of(shape)}")
        if data[:1] != label[:1]:
            raise self.error(f"needs as many labels as samples, got bottoms {text_of(data)} and {text_of(label)}")
        return []

    def forward(self, data: Tensor, label: Tensor) -> tuple[()]:
        arrays = {name: _four_axes(blob).numpy() for name, blob in (("data", data), ("label", label))}
        write_arrays(self.spec.hdf5_output_param.file_name, arrays)
        return ()


def _four_axes(blob: Tensor) -> Tensor:
    blob = blob.detach().cpu()
    if blob.dtype not in (torch.float32, torch.float64):
        blob = blob.float()
    return blob.reshape(*blob.shape, *[1] * (4 - blob.dim()))
