"""Weights in a .caffemodel: a NetParameter with the layers of the net, Split layers included, and their blobs.

A shared blob is written at every layer that reads it, in that layer's own shape. float64 nets write `double_data`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poseidon.errors import SpecError, WeightsError
from poseidon.net.layer import Shape
from poseidon.net.weights_copy import Weights, WeightsView
from poseidon.net.weights_stored import StoredLayer
from poseidon.spec import caffe_pb2
from poseidon.spec.binary import read_weights_proto
from poseidon.spec.blobs import array_to_blob, blob_shape, blob_to_array, shape_equals

if TYPE_CHECKING:
    from poseidon.net.net import Net


@dataclass(frozen=True, slots=True)
class ProtoBlob:
    """One BlobProto."""

    message: caffe_pb2.BlobProto

    @property
    def shape(self) -> Shape:
        return blob_shape(self.message)

    def fits(self, shape: Shape) -> bool:
        return shape_equals(self.message, shape)

    def read(self, what: str) -> np.ndarray:
        try:
            return blob_to_array(self.message, what)
        except SpecError as problem:
            raise WeightsError(str(problem)) from None


@contextmanager
def stored_in_binary(path: str) -> Iterator[list[StoredLayer]]:
    """The layers of a .caffemodel, upgraded from whatever age."""
    try:
        message = read_weights_proto(path)
    except SpecError as problem:
        raise WeightsError(str(problem)) from None
    yield [stored_in_layer(layer) for layer in message.layer]


def stored_in_layer(layer: caffe_pb2.LayerParameter) -> StoredLayer:
    return StoredLayer(layer.name, {str(index): ProtoBlob(blob) for index, blob in enumerate(layer.blobs)})


def net_message(net: Net, *, with_diff: bool, weights: Weights | None = None) -> caffe_pb2.NetParameter:
    """The built net as Caffe writes it: name, and every layer with its phase, loss weights and blobs.

    Blobs that no solver may change (BatchNorm's statistics) are marked by a learning rate of 0. `weights`: those to
    write (None: the net's as they are).
    """
    weights = weights or WeightsView()
    message = caffe_pb2.NetParameter(name=net.name)
    fixed = {(entry.layer, entry.index) for entry in net.learnable if entry.lr_mult == 0}
    for node in net.graph.nodes:
        layer = message.layer.add()
        layer.CopyFrom(node.layer.spec)
        del layer.blobs[:]
        if not layer.loss_weight and any(node.loss_weights):
            layer.loss_weight.extend(node.loss_weights)
        for index in range(node.layer.num_params):
            if (layer.name, index) in fixed:
                _mark_fixed(layer, index)
            diff = weights.diff(node.layer, index) if with_diff else None
            layer.blobs.append(array_to_blob(weights.value(node.layer, index), diff))
    return message


def _mark_fixed(layer: caffe_pb2.LayerParameter, index: int) -> None:
    while len(layer.param) <= index:
        layer.param.add()
    layer.param[index].lr_mult = 0
