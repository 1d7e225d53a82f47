"""One pass over a batch: forward, and backward into the parameters' gradients.

    FusedPass       the whole net as one autograd graph: how training runs
    StepwisePass    layer by layer over blobs that stay: for debug_info, and for whoever wants to look at the blobs

Both add to the gradients that are there, so that iter_size passes give their sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from poseidon.net.graph import Node
from poseidon.net.net import Net
from poseidon.net.stepwise import Stepwise
from poseidon.solver.events import BlobSeen, GradientsSeen, Listener


@dataclass(frozen=True, slots=True)
class PassResult:
    """The net's total loss (0 if it has none) and its outputs, all detached, on the net's device.

    Where workers have unequal parts of a batch, both are weighted (`Graph.weight`): their means over workers are those
    of the whole batch.
    """

    loss: Tensor
    outputs: Mapping[str, Tensor]


class Pass(Protocol):
    """Runs a net over its next batch."""

    def __call__(self, *, backward: bool) -> PassResult: ...


def separate_gradients(values: Iterable[Tensor]) -> None:
    """Gives every gradient memory of its own: where parameters are merely added, autograd hands the diff of their sum
    to all of them as views of one storage, and what the next pass or an update adds to one would be added to all."""
    taken: set[int] = set()
    for value in values:
        if value.grad is not None and not value.grad.is_sparse:
            storage = value.grad.untyped_storage().data_ptr()
            if storage in taken:
                value.grad = value.grad.clone()
            taken.add(storage)


class FusedPass:
    """Forward and backward in one go."""

    def __init__(self, net: Net) -> None:
        self.net = net

    def __call__(self, *, backward: bool) -> PassResult:
        with torch.set_grad_enabled(backward):
            outputs = self.net()
        loss = outputs.loss
        if backward and loss is not None and loss.requires_grad:
            loss.backward()
        total = torch.zeros((), device=self.net.device) if loss is None else loss.detach()
        return PassResult(total, {name: _weighted(value.detach(), self.net) for name, value in outputs.items()})


class StepwisePass:
    """Layer by layer. With a listener it tells the mean absolute value of every blob it makes, as debug_info asks."""

    def __init__(self, stepwise: Stepwise, listener: Listener | None = None) -> None:
        self.stepwise = stepwise
        self._listener = listener

    def __call__(self, *, backward: bool) -> PassResult:
        stepwise = self.stepwise
        loss = stepwise.forward() if self._listener is None else self._forward_seen(self._listener)
        if backward and self._listener is None:
            stepwise.backward()
        elif backward and self._listener is not None:
            self._backward_seen(self._listener)
        net = stepwise.net
        outputs = {name: _weighted(stepwise.blobs[name].data, net) for name in net.outputs}
        return PassResult(torch.tensor(loss, dtype=net.dtype, device=net.device), outputs)

    def _forward_seen(self, listener: Listener) -> float:
        loss = 0.0
        for index, node in enumerate(self.stepwise.nodes):
            loss += self.stepwise.forward_layer(index)
            for name in node.tops:
                self._see(listener, node, "top", name, self.stepwise.blobs[name].data)
            for i in range(node.layer.num_params):
                self._see(listener, node, "param", _param_name(node, i), node.layer.param_owner(i))
        self.stepwise.net.draws.clock += 1
        return loss

    def _backward_seen(self, listener: Listener) -> None:
        for index in reversed(range(len(self.stepwise.nodes))):
            node = self.stepwise.nodes[index]
            if not node.needs_backward:
                continue
            self.stepwise.backward_layer(index)
            for name, needed in zip(node.bottoms, node.bottom_needs_grad, strict=True):
                if needed:
                    self._see(listener, node, "bottom", name, self.stepwise.blobs[name].diff, backward=True)
            for i in range(node.layer.num_params):
                owner = node.layer.param_owner(i)
                if owner.requires_grad:
                    grad = torch.zeros_like(owner) if owner.grad is None else owner.grad
                    self._see(listener, node, "param", str(i), grad, backward=True)
        listener(_norms(self.stepwise.net))

    @staticmethod
    def _see(listener: Listener, node: Node, kind: str, blob: str, value: Tensor, *, backward: bool = False) -> None:
        mean = float(value.detach().abs().sum()) / value.numel() if value.numel() else float("nan")
        listener(BlobSeen(backward, node.layer.name, kind, blob, mean))


def _weighted(value: Tensor, net: Net) -> Tensor:
    return value if net.graph.weight == 1 else value * net.graph.weight


def _param_name(node: Node, index: int) -> str:
    """What Caffe's log calls a parameter: its name, or its place in the layer."""
    specs = node.layer.spec.param
    return (specs[index].name if index < len(specs) else "") or str(index)


def _norms(net: Net) -> GradientsSeen:
    values = [entry.value.detach().double() for entry in net.learnable]
    grads = [entry.value.grad.double() for entry in net.learnable if entry.value.grad is not None]
    return GradientsSeen(_norm(values, 1), _norm(grads, 1), _norm(values, 2), _norm(grads, 2))


def _norm(tensors: list[Tensor], order: int) -> float:
    if not tensors:
        return 0.0
    return float(torch.linalg.vector_norm(torch.cat([tensor.reshape(-1) for tensor in tensors]), order))
