"""What both writers walk through: the steps of a net, each with its layer, blobs and extents.

A BatchNorm and the Scale behind it come as one step where the net itself runs them as one. Both targets are given the
same facts about a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from poseidon.convert.extents import Dims, Extents
from poseidon.net import Net
from poseidon.net.graph import Node
from poseidon.net.layers.scale import Scale
from poseidon.net.program import Program


@dataclass(frozen=True, slots=True)
class ConvertStep:
    node: Node
    bottoms: tuple[Dims, ...]
    tops: tuple[Dims, ...]
    bottom_shapes: tuple[tuple[int, ...], ...]
    scale: Scale | None = None

    def scale_values(self) -> list[np.ndarray]:
        """Weight and bias of the Scale taken along."""
        assert self.scale is not None
        return [self.scale.param(index).detach().cpu().float().numpy() for index in (0, 1)]


def steps_of(net: Net, extents: Extents) -> Iterator[ConvertStep]:
    program = Program(net.graph)
    nodes = [(node, None) for node in program.feeds] + [(step.node, step.scale) for step in program.steps]
    for node, scale in nodes:
        yield ConvertStep(
            node,
            tuple(extents.dims[name] for name in node.bottoms),
            tuple(extents.dims[name] for name in node.tops),
            tuple(extents.numbers[name] for name in node.bottoms),
            scale,
        )


def outputs_of(net: Net) -> dict[str, str]:
    """The net's output blobs and what they are called outside. Inputs that nobody reads are none.

    Where layers overwrite an input in place, the result needs a name of its own: the input's and the layer's.
    """
    writer = {top: node.layer for node in net.graph.nodes for top in node.tops}
    return {
        blob: f"{blob}/{writer[blob].name}" if blob in net.inputs else blob
        for blob in net.outputs
        if writer[blob].type_name != "Input"
    }
