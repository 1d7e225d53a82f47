"""Stepwise: a net run layer by layer, with every blob's data and diff to look at and to change.

This is Caffe's own way of running: forward and backward may start and end at any layer, blobs may be edited in
between, diffs of parameters accumulate, diffs of blobs are overwritten. It calls the same layers as the fused pass;
only the autograd graph is cut at every layer, so that each one's backward can be called by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.errors import NetError
from poseidon.net.blob import Blob
from poseidon.net.graph import Node
from poseidon.net.net import Net


@dataclass(slots=True)
class _Call:
    """What one layer's last forward leaves behind for its backward."""

    bottoms: list[Tensor]
    tops: tuple[Tensor, ...]


class Stepwise:
    """Runs a net's nodes one at a time over persistent blobs."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.nodes = net.graph.nodes
        self._calls: list[_Call | None] = [None] * len(self.nodes)
        self.blobs: dict[str, Blob] = {}
        for node in self.nodes:
            for name, weight in zip(node.tops, node.loss_weights, strict=True):
                if name not in self.blobs:
                    self.blobs[name] = Blob(name, self._zeros(net.graph.shapes[name]))
                if weight:
                    self.blobs[name].diff.fill_(weight)

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
        for index in range(start, last + 1):
            loss += self.forward_layer(index)
        self.net.draws.clock += 1
        return loss

    def forward_layer(self, index: int) -> float:
        """Runs one layer, as part of a pass whose random draws share a clock, and returns the loss it adds."""
        node = self.nodes[index]
        if node.layer.type_name != "Input":
            self._run_layer(index)
        return self._loss_of(node)

    def _run_layer(self, index: int) -> None:
        node = self.nodes[index]
        self._fit(node)
        bottoms = [self._leaf(node, i) for i in range(len(node.bottoms))]
        overwrites, node.layer.in_place = node.layer.in_place, False
        try:
            with torch.set_grad_enabled(node.needs_backward):
                made = node.layer(*bottoms)
        finally:
            node.layer.in_place = overwrites
        tops = made if isinstance(made, tuple) else (made,)
        self._calls[index] = _Call(bottoms, tops) if node.needs_backward else None
        for name, top, weight in zip(node.tops, tops, node.loss_weights, strict=True):
            blob = self.blobs[name]
            reshaped = blob.shape != tuple(top.shape)
            blob.data = top.detach()
            if weight and reshaped:
                blob.diff = torch.full_like(blob.data, weight)

    def _fit(self, node: Node) -> None:
        """Lets the layer check shapes that changed since it last ran, as Caffe reshapes on every forward pass."""
        shapes = tuple(self.blobs[name].shape for name in node.bottoms)
        if shapes != node.bottom_shapes:
            tops = node.layer.reshape(shapes)
            node.bottom_shapes = shapes
            for name, top in zip(node.tops, tops, strict=True):
                node.layer.check_room(f"top {name!r}", top)
                self.net.graph.shapes[name] = top

    def _leaf(self, node: Node, i: int) -> Tensor:
        """A bottom as the root of this layer's own small graph.

        `.data` gives an alias with its own version counter: a user's edit between forward and backward then acts on
        the gradient, as in Caffe, instead of being reported by autograd.
        """
        blob = self.blobs[node.bottoms[i]]
        value = blob.data.data
        if blob.watched and node.bottoms[i] in node.tops:
            value = value.clone()  # the result will be copied over this memory, which backward still needs
        return value.requires_grad_() if node.bottom_needs_grad[i] and value.is_floating_point() else value

    def _loss_of(self, node: Node) -> float:
        total = 0.0
        for name, weight in zip(node.tops, node.loss_weights, strict=True):
            if weight:
                total += float((self.blobs[name].data * self.blobs[name].diff).sum())
        return total

    # -- backward ---------------------------------------------------------------------------------------------------
    def backward(self, start: int | None = None, end: int = 0) -> None:
        """Runs the layers start … end (inclusive, start after end) backwards from the diffs of their tops."""
        first = len(self.nodes) - 1 if start is None else start
        for index in range(first, end - 1, -1):
            self.backward_layer(index)

    def backward_layer(self, index: int) -> None:
        """Runs one layer backwards, if the net needs that."""
        node, call = self.nodes[index], self._calls[index]
        if not node.needs_backward or node.layer.type_name == "Input":
            return
        if call is None:
            raise NetError(f"backward through layer {node.layer.name!r} needs a forward pass through it first")
        outputs = [top for top in call.tops if top.requires_grad]
        diffs = [self.blobs[name].diff for name, top in zip(node.tops, call.tops, strict=True) if top.requires_grad]
        params = [p for p in node.layer.parameters() if p.requires_grad]
        wanted = [b for b in call.bottoms if b.requires_grad]
        if not outputs or not (wanted or params):
            return
        grads = torch.autograd.grad(outputs, [*wanted, *params], diffs, retain_graph=True, allow_unused=True)
        bottom_grads = [
            torch.zeros_like(bottom) if grad is None else grad for bottom, grad in zip(wanted, grads, strict=False)
        ]
        self._store_bottom_diffs(node, call, bottom_grads, diffs)
        for param, grad in zip(params, grads[len(wanted) :], strict=True):
            if grad is None:
                continue  # nothing flows there, or the layer has handed it to somebody (`factor_tap`)
            if param.grad is None:
                param.grad = grad.clone()
            else:
                param.grad.add_(grad)

    def _store_bottom_diffs(self, node: Node, call: _Call, grads: Sequence[Tensor], diffs: Sequence[Tensor]) -> None:
        lent = {diff.untyped_storage().data_ptr() for diff in diffs}
        fresh = iter(grads)
        for name, bottom in zip(node.bottoms, call.bottoms, strict=True):
            if bottom.requires_grad:
                grad = next(fresh)
                # A view-like layer hands its top's diff straight back; the bottom gets memory of its own.
                self.blobs[name].diff = grad.clone() if grad.untyped_storage().data_ptr() in lent else grad

    def _zeros(self, shape: Sequence[int]) -> Tensor:
        return torch.zeros(tuple(shape), dtype=self.net.dtype, device=self.net.device)
