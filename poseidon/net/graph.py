"""Graph: the layers of a net in order, wired by blob names, with what each must do in the backward pass.

Which bottoms need a gradient follows Caffe, in three sweeps:

    down   a blob needs a gradient if its producer has learned parameters or itself has such a bottom;
           `propagate_down` overrules per bottom
    up     what does not lead to a loss needs none; what lies beyond a bottom that takes none needs none
    force  `force_backward` turns everything on again, except bottoms a layer never back-propagates to (labels)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from poseidon.errors import NetError
from poseidon.net.layer import Layer, LayerContext, Shape, text_of
from poseidon.net.layer_patterns import layers_matching
from poseidon.net.params import ParamTable
from poseidon.net.registry import layer_class
from poseidon.spec import NetSource


@dataclass(slots=True)
class Node:
    """One layer in its place: which blobs it reads and writes, and what backward asks of it."""

    layer: Layer
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    loss_weights: tuple[float, ...] = ()
    bottom_needs_grad: list[bool] = field(default_factory=list)
    needs_backward: bool = False
    bottom_shapes: tuple[Shape, ...] = ()

    @property
    def is_in_place(self) -> bool:
        return bool(set(self.bottoms) & set(self.tops))


class Graph:
    """Nodes in running order, the current shape of every blob, and the parameter table.

    Blob names are known to be sound: `insert_splits` refuses unknown bottoms and tops with two producers.

    `weight` is how much a pass counts beside those of other workers, 1 on average: where they have unequal parts of a
    batch, losses (and their gradients) are multiplied by it.
    """

    weight = 1.0

    def __init__(self, source: NetSource, context: LayerContext, freeze: Sequence[str] = ()) -> None:
        self.nodes: list[Node] = []
        self.shapes: dict[str, Shape] = {}
        frozen = layers_matching([spec.name for spec in source.net.layer], freeze, "freeze")
        for position, spec in enumerate(source.net.layer):
            self._append(spec, replace(context, where=source.place(position), frozen=spec.name in frozen))
        self.params = ParamTable([node.layer for node in self.nodes], force_backward=source.net.force_backward)
        self.outputs = self._unread_blobs()
        self.inputs = [top for node in self.nodes if node.layer.type_name == "Input" for top in node.tops]
        self._mark_down()
        self._mark_up()
        if source.net.force_backward:
            self._mark_forced()

    @property
    def has_loss(self) -> bool:
        return any(weight for node in self.nodes for weight in node.loss_weights)

    # -- building ---------------------------------------------------------------------------------------------------
    def _append(self, spec, context: LayerContext) -> None:
        try:
            made = layer_class(spec.type)
        except NetError as problem:
            raise NetError(f"{context.where}: layer {spec.name!r}: {problem}") from None
        spec.phase = context.phase
        layer = made(spec, context)
        if spec.propagate_down and len(spec.propagate_down) != len(spec.bottom):
            raise layer.error(
                f"propagate_down needs one entry per bottom ({len(spec.bottom)}), got {len(spec.propagate_down)}"
            )
        shapes = tuple(self.shapes[name] for name in spec.bottom)
        layer.setup(shapes)
        top_shapes = layer.reshape(shapes)
        tops = self._top_names(layer, len(top_shapes))
        self._check_tops(layer, tops, top_shapes)
        layer.num_tops = len(tops)
        node = Node(layer, tuple(spec.bottom), tops, bottom_shapes=shapes)
        node.loss_weights = self._loss_weights(node)
        self.shapes.update((name, tuple(shape)) for name, shape in zip(tops, top_shapes, strict=True))
        self.nodes.append(node)

    @staticmethod
    def _top_names(layer: Layer, num_tops: int) -> tuple[str, ...]:
        """The tops as written, completed for a loss layer that names none."""
        named = tuple(layer.spec.top)
        automatic = num_tops - len(named) if layer.auto_tops else 0
        return named + tuple(f"({layer.name} automatic {i})" for i in range(automatic))

    def _check_tops(self, layer: Layer, tops: tuple[str, ...], shapes: list[Shape]) -> None:
        for name, shape in zip(tops, shapes, strict=True):
            layer.check_room(f"top {name!r}", shape)
            if name in layer.spec.bottom and tuple(shape) != self.shapes[name]:
                raise layer.error(
                    f"cannot write its top {name!r} of shape {text_of(shape)} over its bottom of shape "
                    f"{text_of(self.shapes[name])}; give the top a name of its own"
                )

    @staticmethod
    def _loss_weights(node: Node) -> tuple[float, ...]:
        layer, given = node.layer, node.layer.spec.loss_weight
        if given and len(given) != len(node.tops):
            raise layer.error(f"loss_weight needs one entry per top ({len(node.tops)}), got {len(given)}")
        return tuple(given) or tuple(layer.default_loss_weight(i) for i in range(len(node.tops)))

    def _unread_blobs(self) -> list[str]:
        """Net outputs: blobs whose last writer comes after every reader, in order of production."""
        unread: dict[str, None] = {}
        for node in self.nodes:
            for name in node.bottoms:
                unread.pop(name, None)
            for name in node.tops:
                unread.pop(name, None)
                unread[name] = None
        return list(unread)

    # -- what needs a gradient --------------------------------------------------------------------------------------
    def _mark_down(self) -> None:
        needs: dict[str, bool] = {}
        for node in self.nodes:
            overrule = list(node.layer.spec.propagate_down)
            node.bottom_needs_grad = overrule or [needs[name] for name in node.bottoms]
            learns = any(node.layer.param_owner(i).requires_grad for i in range(node.layer.num_params))
            node.needs_backward = learns or any(node.bottom_needs_grad)
            for name in node.tops:
                needs[name] = node.needs_backward

    def _mark_up(self) -> None:
        under_loss: set[str] = set()
        takes_none: set[str] = set()
        for node in reversed(self.nodes):
            contributes = any(
                weight or name in under_loss for name, weight in zip(node.tops, node.loss_weights, strict=True)
            )
            skipped = all(name in takes_none for name in node.tops)
            if skipped or not contributes:
                node.needs_backward = False
                node.bottom_needs_grad = [False] * len(node.bottoms)
            for name, needed in zip(node.bottoms, node.bottom_needs_grad, strict=True):
                if contributes:
                    under_loss.add(name)
                if not needed:
                    takes_none.add(name)

    def _mark_forced(self) -> None:
        for node in self.nodes:
            node.needs_backward = True
            node.bottom_needs_grad = [
                needed or node.layer.allows_forced_backward(i) for i, needed in enumerate(node.bottom_needs_grad)
            ]

    # -- shapes -----------------------------------------------------------------------------------------------------
    def reshape(self, changed: dict[str, Shape]) -> None:
        """Gives input blobs new shapes and carries the change through all layers; on an error nothing changes."""
        for name in changed:
            if name not in self.inputs:
                raise NetError(f"blob {name!r} is not an input of the net (inputs: {', '.join(self.inputs) or 'none'})")
        shapes = dict(self.shapes)
        seen: list[tuple[Shape, ...]] = []
        for node in self.nodes:
            bottoms = tuple(shapes[name] for name in node.bottoms)
            seen.append(bottoms)
            if node.layer.type_name == "Input":
                tops = [changed.get(name, shapes[name]) for name in node.tops]
            else:
                tops = node.layer.reshape(bottoms)
            for name, top in zip(node.tops, tops, strict=True):
                node.layer.check_room(f"top {name!r}", top)
                shapes[name] = top
        self.shapes = shapes
        for node, bottoms in zip(self.nodes, seen, strict=True):
            node.bottom_shapes = bottoms

    def describe(self) -> str:
        """One line per layer: name, type, what it reads and what it gives, with shapes."""
        lines = []
        for node in self.nodes:
            tops = ", ".join(f"{name} ({text_of(self.shapes[name])})" for name in node.tops)
            lines.append(f"{node.layer.name:24} {node.layer.type_name:20} {', '.join(node.bottoms)} -> {tops}")
        return "\n".join(lines)
