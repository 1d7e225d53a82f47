"""Folding: BatchNorm and Scale behind a Convolution, Deconvolution or InnerProduct become part of its weights.

    (W x + b − μ) / √(σ² + eps) · s + t   =   W' x + b'        W' = a W,  b' = a (b − μ) + t,  a = s / √(σ² + eps)

Only with fixed statistics, where nobody else reads what lies between, and where no other layer shares a blob involved.
The last of the folded layers' tops becomes the top of the first, so that readers find what they read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from poseidon.convert.statistics import mean_and_variance
from poseidon.net import Net
from poseidon.net.graph import Node
from poseidon.net.layers.batch_norm import BatchNorm
from poseidon.net.layers.inner_product import InnerProduct
from poseidon.net.layers.scale import Scale
from poseidon.spec import NetSource, caffe_pb2

_FOLDABLE = ("Convolution", "Deconvolution", "InnerProduct")


@dataclass(frozen=True, slots=True)
class Folded:
    """The smaller net, and the layers that went into others."""

    net: Net
    layers: tuple[str, ...]


@dataclass(slots=True)
class _Chain:
    """A layer with weights and those that go into it."""

    first: Node
    rest: list[Node]


def fold(net: Net) -> Folded:
    chains = _chains(net)
    if not chains:
        return Folded(net, ())
    absorbed = {id(node) for chain in chains for node in chain.rest}
    by_first = {id(chain.first): chain for chain in chains}
    made, lines, values = caffe_pb2.NetParameter(name=net.name), [], {}
    for node, line in zip(net.graph.nodes, net.source.lines, strict=True):
        if id(node) in absorbed:
            continue
        layer = made.layer.add()
        layer.CopyFrom(node.layer.spec)
        lines.append(line)
        values[layer.name] = [node.layer.param(i).detach() for i in range(node.layer.num_params)]
        chain = by_first.get(id(node))
        if chain is not None:
            values[layer.name] = [torch.from_numpy(value) for value in _merged(chain)]
            layer.top[0] = chain.rest[-1].tops[0]
            _give_bias(layer)
    smaller = Net(NetSource(made, net.source.filename, tuple(lines)), phase="TEST", seed=0)
    with torch.no_grad():
        for name, layer_values in values.items():
            for parameter, value in zip(smaller.params.get(name, []), layer_values, strict=True):
                parameter.copy_(value.reshape(parameter.shape))
    return Folded(smaller, tuple(node.layer.name for chain in chains for node in chain.rest))


def _chains(net: Net) -> list[_Chain]:
    shared = {
        place for entry in net.learnable if entry.sharers for place in [(entry.layer, entry.index), *entry.sharers]
    }
    readers: dict[int, list[Node]] = {}
    maker: dict[str, Node] = {}
    for node in net.graph.nodes:
        for bottom in node.bottoms:
            readers.setdefault(id(maker[bottom]), []).append(node)
        maker.update(dict.fromkeys(node.tops, node))
    chains = []
    for node in net.graph.nodes:
        if node.layer.type_name not in _FOLDABLE or len(node.tops) != 1 or not _channels_on_axis_1(node):
            continue
        chain, last = _Chain(node, []), node
        while True:
            following = readers.get(id(last), [])
            if len(following) != 1 or not _folds_into(following[0], chain):
                break
            last = following[0]
            chain.rest.append(last)
        names = {member.layer.name for member in (node, *chain.rest)}
        if chain.rest and not any(layer in names for layer, _ in shared):
            chains.append(chain)
    return chains


def _channels_on_axis_1(node: Node) -> bool:
    shape = node.bottom_shapes[0]
    if isinstance(node.layer, InnerProduct):
        return node.layer.spec.inner_product_param.axis % len(shape) == 1
    return node.layer.spec.convolution_param.axis % len(shape) == 1


def _folds_into(node: Node, chain: _Chain) -> bool:
    layer = node.layer
    if any(isinstance(before.layer, Scale) for before in chain.rest):
        return False
    if isinstance(layer, BatchNorm):
        return not chain.rest and layer.use_global_stats
    if not isinstance(layer, Scale) or len(node.bottoms) != 1:
        return False
    return layer.spec.scale_param.axis % len(node.bottom_shapes[0]) == 1 and len(layer.param_shapes[0]) == 1


def _merged(chain: _Chain) -> list[np.ndarray]:
    """The new weight and bias."""
    layer = chain.first.layer
    weight = layer.param(0).detach().double().numpy()
    num_outputs = chain.rest[-1].layer.param_shapes[0][0]
    bias = layer.param(1).detach().double().numpy() if layer.num_params > 1 else np.zeros(num_outputs)
    factor = np.ones(num_outputs)
    for node in chain.rest:
        by, shift = _factor_and_shift(node)
        factor, bias = factor * by, bias * by + shift
    weight = _scaled(layer.spec, weight, factor)
    return [weight.astype(np.float32), bias.astype(np.float32)]


def _factor_and_shift(node: Node) -> tuple[np.ndarray, np.ndarray]:
    layer = node.layer
    if isinstance(layer, BatchNorm):
        mean, variance = mean_and_variance(layer)
        by = 1 / np.sqrt(variance + layer.spec.batch_norm_param.eps)
        return by, -mean * by
    by = layer.param(0).detach().double().numpy()
    has_bias = layer.spec.scale_param.bias_term
    return by, layer.param(1).detach().double().numpy() if has_bias else np.zeros_like(by)


def _scaled(spec: caffe_pb2.LayerParameter, weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """The weight with each output channel multiplied by its factor."""
    if spec.type == "Deconvolution":
        group = spec.convolution_param.group
        grouped = weight.reshape(group, weight.shape[0] // group, weight.shape[1], -1)
        return (grouped * factor.reshape(group, 1, -1, 1)).reshape(weight.shape)
    if spec.type == "InnerProduct" and spec.inner_product_param.transpose:
        return weight * factor
    return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))


def _give_bias(layer: caffe_pb2.LayerParameter) -> None:
    options = layer.inner_product_param if layer.type == "InnerProduct" else layer.convolution_param
    options.bias_term = True
