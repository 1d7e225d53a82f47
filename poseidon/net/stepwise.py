"""Stepwise: a net run layer by layer, with every blob's data and diff to look at and to change.

This is Caffe's own way of running: forward and backward may start and end at any layer, blobs may be edited in
between, diffs of parameters accumulate, diffs of blobs are overwritten. It calls the same layers as the fused pass;
only the autograd graph is cut at every layer, so that each one's backward can be called by itself.

Backward reads what is there, as Caffe's does: where no forward pass has gone through a layer yet, or where its
parameters have been updated since, the layer's own small graph is made (again) from the blobs as they are, without
touching its tops or statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from poseidon.errors import NetError
from poseidon.net.array_blob import NetBlob
from poseidon.net.blob import Blob
from poseidon.net.graph import Node
from poseidon.net.layers.python import Python
from poseidon.net.layers.recurrent import Recurrent
from poseidon.net.net import Net

# Called with the index of a layer.
LayerCallback = Callable[[int], object]


@dataclass(slots=True)
class _Call:
    """What one layer's last forward leaves behind for its backward."""

    bottoms: list[Tensor]
    tops: tuple[Tensor, ...]
    versions: tuple[int, ...]
    clock: int
    states: list[Tensor]  # a recurrent layer's, before the call


@dataclass(slots=True)
class _Station:
    """A node with what running it needs, looked up once."""

    node: Node
    bottoms: list[Blob]
    tops: list[Blob]
    overwritten: list[bool]  # which bottoms are tops as well
    is_input: bool
    on_blobs: bool
    weighted: list[tuple[Blob, float]]
    call: _Call | None = None


@dataclass(slots=True)
class LayerCallbacks:
    """Whom to call around every layer of a pass."""

    before_forward: list[LayerCallback] = field(default_factory=list)
    after_forward: list[LayerCallback] = field(default_factory=list)
    before_backward: list[LayerCallback] = field(default_factory=list)
    after_backward: list[LayerCallback] = field(default_factory=list)


class Stepwise:
    """Runs a net's nodes one at a time over persistent blobs."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.nodes = net.graph.nodes
        self.blobs: dict[str, Blob] = {}
        self.callbacks = LayerCallbacks()
        self._stations = [self._station(node) for node in self.nodes]
        self._records = any(node.needs_backward for node in self.nodes)
        self.faces = {name: NetBlob(blob) for name, blob in self.blobs.items()}

    def index_of(self, layer_name: str) -> int:
        for index, node in enumerate(self.nodes):
            if node.layer.name == layer_name:
                return index
        raise NetError(f"the net has no layer {layer_name!r} (layers: {', '.join(n.layer.name for n in self.nodes)})")

    # -- forward ----------------------------------------------------------------------------------------------------
    def forward(self, start: int = 0, end: int | None = None) -> float:
        """Runs the layers start … end (inclusive) and returns the loss they add up to."""
        last = len(self.nodes) - 1 if end is None else end
        loss = 0.0
        with torch.set_grad_enabled(self._records):  # once, where no layer needs another
            for index in range(start, last + 1):
                loss += self.forward_layer(index)
        self.net.draws.clock += 1
        return loss

    def forward_layer(self, index: int) -> float:
        """Runs one layer, as part of a pass whose random draws share a clock, and returns the loss it adds."""
        station = self._stations[index]
        for callback in self.callbacks.before_forward:
            callback(index)
        if station.on_blobs:
            self._run_on_blobs(station)
        elif not station.is_input:
            self._run_layer(station)
        loss = 0.0
        for blob, _ in station.weighted:
            loss += _weighted_sum(blob)
        for callback in self.callbacks.after_forward:
            callback(index)
        return loss

    def _run_layer(self, station: _Station) -> None:
        node = station.node
        self._fit(station)
        bottoms, states = _leaves(station), _carried(node)
        tops = _compute(node, bottoms)
        if node.needs_backward:
            station.call = _Call(bottoms, tops, _versions(node), self.net.draws.clock, states)
        for blob, top in zip(station.tops, tops, strict=True):
            blob.data = top.detach()
        for blob, weight in station.weighted:
            blob.fit_diff(weight)

    def _run_on_blobs(self, station: _Station) -> None:
        """Lets a layer work on the blobs themselves; their shapes afterwards are what it wants them to be."""
        node = station.node
        assert isinstance(node.layer, Python)
        if node.is_in_place:
            for blob in station.tops:
                blob.data = blob.data.clone()  # the layer before may need what it gave for its own backward pass
        node.layer.run_on_blobs(*self._faces_of(node))
        self._note_shapes(station)

    def _fit(self, station: _Station) -> None:
        """Lets the layer check shapes that changed since it last ran, as Caffe reshapes on every forward pass."""
        node = station.node
        shapes = tuple([blob.data.shape for blob in station.bottoms])
        if shapes != node.bottom_shapes:
            plain = tuple(map(tuple, shapes))
            tops = node.layer.reshape(plain)
            node.bottom_shapes = plain
            for name, top in zip(node.tops, tops, strict=True):
                node.layer.check_room(f"top {name!r}", top)
                self.net.graph.shapes[name] = tuple(top)

    # -- backward ---------------------------------------------------------------------------------------------------
    def backward(self, start: int | None = None, end: int = 0) -> None:
        """Runs the layers start … end (inclusive, start after end) backwards from the diffs of their tops."""
        first = len(self.nodes) - 1 if start is None else start
        for index in range(first, end - 1, -1):
            self.backward_layer(index)

    def backward_layer(self, index: int) -> None:
        """Runs one layer backwards, if the net needs that."""
        station = self._stations[index]
        for callback in self.callbacks.before_backward:
            callback(index)
        if station.node.needs_backward and not station.is_input:
            if station.on_blobs:
                self._run_back_on_blobs(station)
            else:
                self._differentiate(station)
        for callback in self.callbacks.after_backward:
            callback(index)

    def _differentiate(self, station: _Station) -> None:
        node, call = station.node, self._current_call(station)
        outputs = [top for top in call.tops if top.requires_grad]
        diffs = [blob.diff for blob, top in zip(station.tops, call.tops, strict=True) if top.requires_grad]
        params = [p for p in node.layer.parameters() if p.requires_grad]
        wanted = [b for b in call.bottoms if b.requires_grad]
        if not outputs or not (wanted or params):
            return
        seed = _Seed.apply(diffs, *outputs)
        grads = torch.autograd.grad(seed, [*wanted, *params], retain_graph=True, allow_unused=True)
        bottom_grads = [
            torch.zeros_like(bottom) if grad is None else grad for bottom, grad in zip(wanted, grads, strict=False)
        ]
        _store_bottom_diffs(station, call, bottom_grads, diffs)
        for param, grad in zip(params, grads[len(wanted) :], strict=True):
            _accumulate(param, grad)

    def _current_call(self, station: _Station) -> _Call:
        """The last forward call, or one made of what the blobs hold now."""
        node, call, draws = station.node, station.call, self.net.draws
        if call is not None and call.versions == _versions(node) and not _has_moved(station, call):
            return call
        kept = [(p, p.detach().clone()) for p in node.layer.parameters() if not p.requires_grad]
        now, states = draws.clock, _carried(node)
        draws.clock, before = (now, states) if call is None else (call.clock, call.states)
        clock = draws.clock
        try:
            self._fit(station)
            bottoms = _leaves(station)
            if call is not None:  # what has been overwritten since is only there
                bottoms = [call.bottoms[i] if gone else bottoms[i] for i, gone in enumerate(station.overwritten)]
            _carry(node, before)
            tops = _compute(node, bottoms)
        finally:
            draws.clock = now
            _carry(node, states)
            for parameter, value in kept:
                parameter.data.copy_(value)  # unnoticed by autograd: the graph just made may need it
        station.call = _Call(bottoms, tops, _versions(node), clock, before)
        return station.call

    def _run_back_on_blobs(self, station: _Station) -> None:
        node = station.node
        assert isinstance(node.layer, Python)
        bottoms, tops = self._faces_of(node)
        node.layer.run_back_on_blobs(tops, list(node.bottom_needs_grad), bottoms)

    # -- shapes -----------------------------------------------------------------------------------------------------
    def reshape(self) -> None:
        """Carries the shapes of the blobs that the net's first layers give through all the others."""
        for station in self._stations:
            node = station.node
            if station.on_blobs:
                assert isinstance(node.layer, Python)
                node.layer.reshape_on_blobs(*self._faces_of(node))
            elif not station.is_input:
                self._fit(station)
                for name, blob in zip(node.tops, station.tops, strict=True):
                    blob.reshape(self.net.graph.shapes[name])
            self._note_shapes(station)

    def _note_shapes(self, station: _Station) -> None:
        node, shapes = station.node, self.net.graph.shapes
        node.bottom_shapes = tuple([shapes[name] for name in node.bottoms])
        for name, blob in zip(node.tops, station.tops, strict=True):
            node.layer.check_room(f"top {name!r}", blob.shape)
            shapes[name] = blob.shape
        for blob, weight in station.weighted:
            blob.fit_diff(weight)

    # -- building ---------------------------------------------------------------------------------------------------
    def _station(self, node: Node) -> _Station:
        initial = list(node.layer.initial_tops()) or [None] * len(node.tops)
        for name, value in zip(node.tops, initial, strict=True):
            if name not in self.blobs:
                self.blobs[name] = Blob(name, self._first_value(node, name, value))
        tops = [self.blobs[name] for name in node.tops]
        scale = self.net.graph.weight
        weighted = [(blob, weight * scale) for blob, weight in zip(tops, node.loss_weights, strict=True) if weight]
        for blob, weight in weighted:
            blob.diff.fill_(weight)
        return _Station(
            node,
            [self.blobs[name] for name in node.bottoms],
            tops,
            [name in node.tops for name in node.bottoms],
            is_input=node.layer.type_name == "Input",
            on_blobs=isinstance(node.layer, Python) and node.layer.shows_memory,
            weighted=weighted,
        )

    def _first_value(self, node: Node, name: str, given: Tensor | None) -> Tensor:
        shape = self.net.graph.shapes[name]
        if given is not None and tuple(given.shape) == shape:
            return given
        if node.layer.views_bottom:
            return self.blobs[node.bottoms[0]].data.view(shape)
        return torch.zeros(shape, dtype=self.net.dtype, device=self.net.device)

    def _faces_of(self, node: Node) -> tuple[list[NetBlob], list[NetBlob]]:
        return [self.faces[name] for name in node.bottoms], [self.faces[name] for name in node.tops]


def _weighted_sum(blob: Blob) -> float:
    """A loss: its values times its diff, which holds the weight unless somebody has changed it."""
    if blob.data.dim() == 0:
        return blob.data.item() * blob.diff.item()
    return (blob.data * blob.diff).sum().item()


def _leaves(station: _Station) -> list[Tensor]:
    """The bottoms as roots of this layer's own small graph.

    `.data` gives an alias with its own version counter: a user's edit between forward and backward then acts on the
    gradient, as in Caffe, instead of being reported by autograd.
    """
    leaves = []
    for blob, overwritten, needs_grad in zip(
        station.bottoms, station.overwritten, station.node.bottom_needs_grad, strict=True
    ):
        value = blob.data.data
        if overwritten and blob.watched:
            value = value.clone()  # the result will be copied over this memory, which backward still needs
        if needs_grad and value.is_floating_point():
            value.requires_grad_()
        leaves.append(value)
    return leaves


def _compute(node: Node, bottoms: list[Tensor]) -> tuple[Tensor, ...]:
    """The layer's tops, in memory of their own, with a graph if backward needs one."""
    layer = node.layer
    overwrites = layer.in_place
    if overwrites:
        layer.in_place = False
    try:
        if node.needs_backward == torch.is_grad_enabled():
            made = layer(*bottoms)
        else:
            with torch.set_grad_enabled(node.needs_backward):
                made = layer(*bottoms)
    finally:
        if overwrites:
            layer.in_place = True
    return made if isinstance(made, tuple) else (made,)


def _versions(node: Node) -> tuple[int, ...]:
    """How often each parameter has been written to by torch; a user's edits through arrays do not count."""
    return tuple([p._version for p in node.layer._parameters.values() if p is not None])


def _carried(node: Node) -> list[Tensor]:
    """What a recurrent layer's next call begins from."""
    return node.layer.carried() if isinstance(node.layer, Recurrent) else []


def _carry(node: Node, states: list[Tensor]) -> None:
    if isinstance(node.layer, Recurrent):
        node.layer.carry(states)


def _has_moved(station: _Station, call: _Call) -> bool:
    """True if a bottom's values are elsewhere since: somebody has looked at them, and perhaps edited."""
    return any(
        not overwritten and blob.data.data_ptr() != bottom.data_ptr()
        for blob, bottom, overwritten in zip(station.bottoms, call.bottoms, station.overwritten, strict=True)
    )


def _accumulate(param: nn.Parameter, grad: Tensor | None) -> None:
    if grad is None:
        return  # nothing flows there, or the layer has handed it to somebody (`factor_tap`)
    if param.grad is None:
        param.grad = grad.clone()
    else:
        param.grad.add_(grad)


class _Seed(torch.autograd.Function):
    """A number whose derivative by each output is the diff that is given. autograd takes such diffs as well, and checks
    their shapes with torch's symbolic ones, which it imports for that: a second, and 80 MB."""

    @staticmethod
    def forward(ctx: Any, diffs: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.diffs = diffs
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.diffs)


def _store_bottom_diffs(station: _Station, call: _Call, grads: Sequence[Tensor], diffs: Sequence[Tensor]) -> None:
    lent = {diff.untyped_storage().data_ptr() for diff in diffs}
    fresh = iter(grads)
    for blob, bottom in zip(station.bottoms, call.bottoms, strict=True):
        if bottom.requires_grad:
            grad = next(fresh)
            # A view-like layer hands its top's diff straight back; the bottom gets memory of its own.
            blob.diff = grad.clone() if grad.untyped_storage().data_ptr() in lent else grad
