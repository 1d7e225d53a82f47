"""OutgoingLayer: one layer on its way into another format, as emitters of all formats see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from poseidon.convert.extents import Dims
from poseidon.convert.steps import ConvertStep
from poseidon.errors import LayerError
from poseidon.net.layer import Layer


class OutgoingLayer:
    """`inputs` are the names of its bottoms there. Without a step it is the inside of a layer: there are no blobs."""

    def __init__(self, layer: Layer, inputs: Sequence[str] = (), step: ConvertStep | None = None) -> None:
        self.layer = layer
        self.inputs = list(inputs)
        self.bottoms: list[Dims] = [] if step is None else list(step.bottoms)
        self.tops: list[Dims] = [] if step is None else list(step.tops)
        self.bottom_shapes: list[tuple[int, ...]] = [] if step is None else list(step.bottom_shapes)

    @property
    def x(self) -> str:
        return self.inputs[0]

    @property
    def spec(self) -> Any:
        return self.layer.spec

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the first bottom, as the prototxt has it."""
        return self.bottom_shapes[0]

    @property
    def rank(self) -> int:
        return len(self.bottoms[0])

    def param_value(self, index: int) -> np.ndarray:
        return self.layer.param(index).detach().cpu().float().numpy()

    def error(self, message: str) -> LayerError:
        return self.layer.error(message)
