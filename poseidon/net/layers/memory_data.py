"""MemoryData: batches cut from arrays that the caller holds in memory.

    top 0   data    batch_size × channels × height × width
    top 1   label   batch_size × 1 × 1 × 1

`reset(data, labels)` hands over n samples, n a multiple of batch_size; forward gives the next batch_size of them and
begins again after the last. Arrays are used where they are, not copied, and not transformed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from poseidon.net.layer import Layer, LayerContext, Shape, exactly, text_of
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2


@register("MemoryData")
class MemoryData(Layer):
    bottoms = exactly(0)
    tops = exactly(2)

    def __init__(self, spec: caffe_pb2.LayerParameter, context: LayerContext) -> None:
        super().__init__(spec, context)
        self._data: Tensor | None = None
        self._labels: Tensor | None = None
        self._position = 0

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        for name in ("batch_size", "channels", "height", "width"):
            if getattr(self.spec.memory_data_param, name) < 1:
                raise self.error(f"memory_data_param.{name} must be given and at least 1")

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        options = self.spec.memory_data_param
        return [(options.batch_size, *self._sample_shape), (options.batch_size, 1, 1, 1)]

    @property
    def _sample_shape(self) -> Shape:
        options = self.spec.memory_data_param
        return (options.channels, options.height, options.width)

    def reset(self, data: Tensor | np.ndarray, labels: Tensor | np.ndarray) -> None:
        """Takes n samples (n × channels × height × width) and their labels; the next forward begins with the first."""
        data, labels = torch.as_tensor(data), torch.as_tensor(labels)
        batch = self.spec.memory_data_param.batch_size
        if data.dim() == 0 or tuple(data.shape[1:]) != self._sample_shape:
            raise self.error(f"data must be n x {text_of(self._sample_shape)}, got {text_of(data.shape)}")
        num_samples = len(data)
        if labels.numel() != num_samples:
            raise self.error(
                f"needs one label per sample, got {num_samples} samples and labels {text_of(labels.shape)}"
            )
        if num_samples == 0 or num_samples % batch:
            raise self.error(f"the number of samples must be a multiple of batch_size {batch}, got {num_samples}")
        if self.spec.HasField("transform_param"):
            warnings.warn(f"layer {self.name!r} (MemoryData) does not transform arrays given by reset", stacklevel=2)
        self._data, self._labels = data, labels.reshape(-1, 1, 1, 1)
        self._position = 0

    def forward(self) -> tuple[Tensor, Tensor]:
        if self._data is None or self._labels is None:
            raise self.error("has no data yet; call reset(data, labels), or set_input_arrays on the net")
        start = self._position % len(self._data)  # a position sought may be one in larger arrays
        rows = slice(start, start + self.spec.memory_data_param.batch_size)
        self._position = rows.stop % len(self._data)
        return self._placed(self._data[rows]), self._placed(self._labels[rows])

    def position(self) -> dict[str, int]:
        """For a snapshot: the sample that comes next. The arrays themselves are the caller's to bring back."""
        return {"sample": self._position}

    def seek(self, position: dict[str, int]) -> None:
        self._position = int(position["sample"])

    def _placed(self, values: Tensor) -> Tensor:
        return values.to(self.context.device, self.context.dtype)
