"""NeuronLayer: what the activations share: one bottom, one top, the same shape, element by element."""

from __future__ import annotations

from collections.abc import Sequence

from poseidon.net.layer import Layer, Shape


class NeuronLayer(Layer):
    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [bottom_shapes[0]]
