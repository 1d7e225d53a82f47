"""DummyData: tops filled by fillers, for tests and timing.

Extents come as `shape`, once or once per top, or as the older `num`, `channels`, `height`, `width`, each once or once
per top. `data_filler` is given never (zeros), once, or once per top. A constant top is filled once and then left
alone, so that what somebody writes into it stays; any other is filled anew on every forward pass.

Elements drawn independently (uniform, gaussian) are keyed by sample, so that workers draw what one worker with the
whole batch would.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net import fillers
from poseidon.net.layer import Layer, LayerContext, Shape, at_least, exactly, text_of
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2


@register("DummyData")
class DummyData(Layer):
    bottoms = exactly(0)
    tops = at_least(1)

    def __init__(self, spec: caffe_pb2.LayerParameter, context: LayerContext) -> None:
        super().__init__(spec, context)
        self._constants: dict[int, Tensor] = {}
        self._num_samples: dict[int, int] = {}

    def deal(self, batch_size: int, num_samples: int) -> None:
        """From now on, tops whose first axis is written as `batch_size` have this worker's `num_samples` instead."""
        self._num_samples = {batch_size: num_samples}

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        options = self.spec.dummy_data_param
        if len(options.data_filler) not in (0, 1, self.num_tops):
            raise self.error(
                f"data_filler must be given never, once or once per top ({self.num_tops}), "
                f"got {len(options.data_filler)}"
            )
        legacy = [options.num, options.channels, options.height, options.width]
        if not any(legacy):
            shapes = [tuple(shape.dim) for shape in self._per_top("shape", options.shape)]
        elif options.shape:
            raise self.error("extents come as `shape` or as num, channels, height and width, got both")
        else:
            names = ("num", "channels", "height", "width")
            columns = [self._per_top(name, given) for name, given in zip(names, legacy, strict=True)]
            shapes = list(zip(*columns, strict=True))
        for shape in shapes:
            if any(extent < 0 for extent in shape):
                raise self.error(f"dummy_data_param.shape cannot be negative, got {text_of(shape)}")
        return [(self._num_samples.get(shape[0], shape[0]), *shape[1:]) if shape else shape for shape in shapes]

    def _per_top(self, name: str, given: Sequence) -> list:
        if len(given) not in (1, self.num_tops):
            raise self.error(f"{name} must be given once or once per top ({self.num_tops}), got {len(given)}")
        return list(given) * self.num_tops if len(given) == 1 else list(given)

    def initial_tops(self) -> list[Tensor | None]:
        """The constant ones: that memory is theirs for good."""
        return [
            self._top(index, shape) if self._filler(index).type == "constant" else None
            for index, shape in enumerate(self.reshape([]))
        ]

    def forward(self) -> tuple[Tensor, ...]:
        return tuple(self._top(index, shape) for index, shape in enumerate(self.reshape([])))

    def _top(self, index: int, shape: Shape) -> Tensor:
        filler = self._filler(index)
        kept = self._constants.get(index)
        if kept is not None and kept.shape == shape:
            return kept
        top = torch.empty(shape, dtype=self.context.dtype, device=self.context.device)
        try:
            self._fill(top, filler, index)
        except ValueError as problem:
            raise self.error(f"top {index}: {problem}") from None
        if filler.type == "constant":
            self._constants[index] = top
        return top

    def _filler(self, index: int) -> caffe_pb2.FillerParameter:
        given = self.spec.dummy_data_param.data_filler
        return given[index if len(given) > 1 else 0] if given else caffe_pb2.FillerParameter()

    def _fill(self, top: Tensor, filler: caffe_pb2.FillerParameter, index: int) -> None:
        draws = self.context.draws
        name = f"dummy data {self.name} {index}"
        if filler.type in ("uniform", "gaussian") and filler.sparse < 0:
            draws.per_sample(name, top, lambda row, generator: fillers.fill(row, filler, generator))
        else:
            fillers.fill(top, filler, draws.generator(name, draws.clock, device=top.device))
