"""How long each layer of a net takes: measured on this machine, or estimated from its multiplications.

Estimates count 2 FLOP per multiplication of Convolution, Deconvolution, InnerProduct and the recurrent layers, and
nothing for the others, which hardly count beside them. Backward is once that for the parameters' gradients and once for
the bottom's, where a layer has either.

    Convolution     top elements × channels / group × kernel
    Deconvolution   bottom elements × outputs / group × kernel
    InnerProduct    rows × outputs × inputs
    LSTM, RNN       steps × streams × elements of the weights
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from poseidon.net import Net, Stepwise
from poseidon.net.graph import Node
from poseidon.net.layer import count_of
from poseidon.net.layers.convolution import Convolution
from poseidon.net.layers.deconvolution import Deconvolution
from poseidon.net.layers.hdf5_output import HDF5Output
from poseidon.net.layers.inner_product import InnerProduct
from poseidon.net.layers.python import Python
from poseidon.net.layers.recurrent import Recurrent
from poseidon.solver.continuation import Carrying


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of one pass."""

    forward_s: float = 0.0
    backward_s: float = 0.0


# -- estimated --------------------------------------------------------------------------------------------------------
def estimated_times(net: Net, flops: float) -> list[LayerTime]:
    """Every node's seconds on a device with this many FLOP/s."""
    times = []
    for node in net.graph.nodes:
        forward_s = 2 * multiplications(node, net) / flops
        learns = any(node.layer.param_owner(i).requires_grad for i in range(node.layer.num_params))
        num_products = int(learns) + int(any(node.bottom_needs_grad)) if node.needs_backward else 0
        times.append(LayerTime(forward_s, forward_s * num_products))
    return times


def multiplications(node: Node, net: Net) -> int:
    """Of one forward pass through a layer; 0 for what does little else than move data."""
    layer = node.layer
    weight = layer.param_shapes[0] if layer.num_params else ()
    if isinstance(layer, Convolution):
        return sum(count_of(net.graph.shapes[top]) for top in node.tops) * count_of(weight, 1)
    if isinstance(layer, Deconvolution):
        return sum(map(count_of, node.bottom_shapes)) * count_of(weight, 1)
    if isinstance(layer, InnerProduct):
        return inner_product_rows(node) * count_of(weight)
    if isinstance(layer, Recurrent):
        return count_of(node.bottom_shapes[0], 0, 2) * sum(count_of(s) for s in layer.param_shapes if len(s) == 2)
    return 0


def inner_product_rows(node: Node) -> int:
    """How many rows an InnerProduct multiplies: the product of the axes before `axis`."""
    assert isinstance(node.layer, InnerProduct)
    return node.layer.num_rows(node.bottom_shapes[0])


def scaled_times(times: Sequence[LayerTime], total_s: float) -> list[LayerTime]:
    """The same proportions, adding up to `total_s`; layers share alike, a third forward, if nothing is known."""
    known_s = math.fsum(part for layer in times for part in (layer.forward_s, layer.backward_s))
    if known_s == 0:
        return [LayerTime(total_s / len(times) / 3, total_s / len(times) * 2 / 3) for _ in times]
    return [LayerTime(t.forward_s * total_s / known_s, t.backward_s * total_s / known_s) for t in times]


# -- measured ---------------------------------------------------------------------------------------------------------
def measured_times(net: Net, num_passes: int = 3) -> list[LayerTime]:
    """The median of a few passes after a first that is not counted.

    Layers that feed the net are left out: batches are made ahead while others compute. So are Python layers, which may
    count how often they are called. The passes run on zeros, and leave parameters, gradients, statistics, carried
    states and random draws as they were.
    """
    nodes = net.graph.nodes
    forward_s: list[list[float]] = [[] for _ in nodes]
    backward_s: list[list[float]] = [[] for _ in nodes]
    with _undisturbed(net):
        stepwise = Stepwise(net)
        wait = torch.cuda.synchronize if net.device.type == "cuda" else _no_wait
        for _ in range(num_passes + 1):
            for index, node in enumerate(nodes):
                if _is_run(node):
                    forward_s[index].append(_seconds(partial(stepwise.forward_layer, index), wait))
            for index in reversed(range(len(nodes))):
                if _is_run(nodes[index]):
                    backward_s[index].append(_seconds(partial(stepwise.backward_layer, index), wait))
    return [LayerTime(_typical(f), _typical(b)) for f, b in zip(forward_s, backward_s, strict=True)]


def _is_run(node: Node) -> bool:
    """What feeds a net is left out, and what would leave traces: in a file, or in a user's own object."""
    feeds = not node.bottoms and not node.layer.num_params
    return not feeds and not isinstance(node.layer, HDF5Output | Python)


def _seconds(call: Callable[[], object], wait: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - begin


def _no_wait() -> None:
    """The CPU is done when a call returns."""


def _typical(seconds: Sequence[float]) -> float:
    return statistics.median(seconds[1:]) if seconds else 0.0


@contextlib.contextmanager
def _undisturbed(net: Net) -> Iterator[None]:
    """Puts back what a pass changes."""
    clock = net.draws.clock
    grads = [(entry.value, entry.value.grad) for entry in net.learnable]
    statistics_kept = [(e.value, e.value.detach().clone()) for e in net.learnable if not e.value.requires_grad]
    carried = [(layer, layer.carried()) for layer in net.layers.values() if isinstance(layer, Carrying)]
    for value, _ in grads:
        value.grad = None
    try:
        yield
    finally:
        net.draws.clock = clock
        for value, grad in grads:
            value.grad = grad
        with torch.no_grad():
            for value, kept in statistics_kept:
                value.copy_(kept)
        for layer, tensors in carried:
            layer.carry(tensors)
