"""Extents: the shape of every blob, with the axes that may change when the net runs under another batch size.

    data  batch × 3 × 28 × 28        pairs sliced in two:  batch/2 × …        fixed:  1 × 3 × 28 × 28

Found by asking: the net's inputs are reshaped to twice as many samples, and whatever axis grows is dynamic. A net whose
layers refuse that (a Reshape with the batch written out) keeps its batch size; `reason` has the layer's words.

Recurrent nets have two such sizes, `steps` and `batch` (streams). What a Filter lets through is a size of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from fractions import Fraction

from poseidon.errors import LayerError
from poseidon.net.graph import Graph, Node
from poseidon.net.layer import Shape

Dim = int | str
Dims = tuple[Dim, ...]


class Extents:
    """`dims[blob]`: numbers, and the names of those that change; `numbers[blob]`: as the prototxt has them."""

    def __init__(self, graph: Graph, *, fixed: bool = False) -> None:
        self.numbers: dict[str, Shape] = dict(graph.shapes)
        self.input_axes: dict[str, dict[int, str]] = {name: {} for name in graph.inputs}
        self.reason = "asked for" if fixed else ""
        grown: dict[str, dict[str, Shape]] = {}
        if not fixed:
            for symbol, axes in _candidates(graph):
                shapes = self._try(graph, axes)
                if shapes is not None:
                    grown[symbol] = shapes
                    for name, axis in axes.items():
                        self.input_axes[name][axis] = symbol
        for node in graph.nodes:
            if node.layer.type_name == "Filter":
                # A later layer that needs all samples refuses, here as in the net itself once something is left out.
                with contextlib.suppress(LayerError):
                    grown[f"{node.layer.name} selected"] = _walk(graph, {}, thinned=node)
        _walk(graph, {})  # layers that remember the shapes they saw last see the net's own again
        self.dims: dict[str, Dims] = {
            name: tuple(_dim(extent, axis, name, grown, self._base(graph)) for axis, extent in enumerate(shape))
            for name, shape in self.numbers.items()
        }
        if grown:
            self.reason = ""

    @property
    def is_dynamic(self) -> bool:
        return any(self.input_axes.values())

    def resized(self, **sizes: int) -> dict[str, Shape]:
        """The inputs' shapes with the named sizes, e.g. batch=2; the rest as in the prototxt."""
        shapes = {}
        for name, axes in self.input_axes.items():
            shape = list(self.numbers[name])
            for axis, symbol in axes.items():
                shape[axis] = sizes.get(symbol, shape[axis])
            shapes[name] = tuple(shape)
        return shapes

    def _try(self, graph: Graph, axes: Mapping[str, int]) -> dict[str, Shape] | None:
        changed = {}
        for name, axis in axes.items():
            shape = list(self.numbers[name])
            shape[axis] *= 2
            changed[name] = tuple(shape)
        try:
            return _walk(graph, changed)
        except LayerError as problem:
            self.reason = str(problem)
            return None

    def _base(self, graph: Graph) -> dict[str, int]:
        return {
            symbol: self.numbers[name][axis] for name, axes in self.input_axes.items() for axis, symbol in axes.items()
        }


def _candidates(graph: Graph) -> list[tuple[str, dict[str, int]]]:
    """Sizes worth trying, each with the axis of every input that has it."""
    conts = [node.bottom_shapes[1] for node in graph.nodes if node.layer.type_name in ("LSTM", "RNN")]
    if not conts:
        axes = {name: 0 for name in graph.inputs if graph.shapes[name] and graph.shapes[name][0]}
        return [("batch", axes)] if axes else []
    steps, streams = conts[0]
    in_time = {name for name in graph.inputs if graph.shapes[name][:2] == (steps, streams)}
    states = {name for name in graph.inputs if graph.shapes[name][:2] == (1, streams)} - in_time
    batch = dict.fromkeys(in_time | states, 1)
    batch |= {name: 0 for name in graph.inputs if name not in batch and graph.shapes[name][:1] == (streams,)}
    return [("steps", dict.fromkeys(in_time, 0)), ("batch", batch)]


def _walk(graph: Graph, changed: Mapping[str, Shape], thinned: Node | None = None) -> dict[str, Shape]:
    """The shapes that follow from changed inputs, or from a Filter that lets other samples through."""
    shapes: dict[str, Shape] = {}
    for node in graph.nodes:
        if node.layer.type_name == "Input":
            tops = [changed.get(name, graph.shapes[name]) for name in node.tops]
        else:
            tops = node.layer.reshape(tuple(shapes[name] for name in node.bottoms))
        if node is thinned:
            tops = [(shape[0] + 1, *shape[1:]) for shape in tops]
        shapes.update((name, tuple(shape)) for name, shape in zip(node.tops, tops, strict=True))
    return shapes


def _dim(extent: int, axis: int, blob: str, grown: dict[str, dict[str, Shape]], base: dict[str, int]) -> Dim:
    varying = [symbol for symbol, shapes in grown.items() if shapes[blob][axis] != extent]
    if not varying:
        return extent
    if len(varying) > 1 or varying[0] not in base:
        return "·".join(varying) + (f"·{extent}" if len(varying) > 1 else "")
    symbol = varying[0]
    # extent = slope · size + offset, from two sizes: size and twice the size.
    slope = Fraction(grown[symbol][blob][axis] - extent, base[symbol])
    offset = extent - slope * base[symbol]
    text = symbol if slope.numerator == 1 else f"{slope.numerator}*{symbol}"
    text += "" if slope.denominator == 1 else f"/{slope.denominator}"
    return text if offset == 0 else f"{text}{'+' if offset > 0 else '-'}{abs(offset)}"
