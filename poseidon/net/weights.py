"""Weights of a net, from and to files: .caffemodel (binary protobuf, any age) and .caffemodel.h5 (HDF5).

Values go by layer name, as in Caffe: a stored layer the net does not have is ignored, a layer of the net that is not
stored stays as it is, and where both have it, the number of blobs and their shapes must agree. Blobs from the time of
four fixed axes fit when ones in front make up the difference.

Loading is all or nothing: everything is read and checked before the first parameter changes. Stored gradients are not
loaded. What is read may be damaged or made to harm: shapes are compared with the net's before any value is read, so
that a file cannot ask for more memory than the net has (HDF5) or the file itself is long (binary).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from poseidon.errors import SpecError, WeightsError
from poseidon.net.layer import Layer, text_of
from poseidon.net.layer_patterns import layers_matching
from poseidon.net.weights_binary import net_message, stored_in_binary, stored_in_layer
from poseidon.net.weights_hdf5 import is_hdf5, stored_in_hdf5, write_hdf5
from poseidon.net.weights_stored import StoredBlob, StoredLayer
from poseidon.spec.binary import write_binary

if TYPE_CHECKING:
    from poseidon.net.net import Net


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """What a load did, by layer name; layers without parameters on either side are not mentioned.

    matched     took their values from the file
    ignored     have weights in the file, but are not in the net
    untouched   have parameters in the net, but none in the file: they stay as initialised
    """

    matched: tuple[str, ...]
    ignored: tuple[str, ...]
    untouched: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(
            (
                _line("loaded", self.matched),
                _line("in the file only, ignored", self.ignored),
                _line("in the net only, as initialised", self.untouched),
            )
        )


@dataclass(frozen=True, slots=True)
class _Copy:
    """One value on its way into a parameter."""

    target: nn.Parameter
    blob: StoredBlob
    what: str


def load_weights(
    net: Net, path: str | os.PathLike[str], *, complete: bool = False, skip: Sequence[str] = ()
) -> WeightsReport:
    """Copies weights by layer name from a .caffemodel or HDF5 file, told apart by their contents. With `complete` the
    file must have values for every parameter of the net. `skip`: patterns of layers that stay as they are."""
    name = os.fspath(path)
    skipped = layers_matching([node.layer.name for node in net.graph.nodes], skip, "skip")
    opened = stored_in_hdf5(name) if is_hdf5(name) else stored_in_binary(name)
    with opened as stored:
        copies, report = _match(net, [layer for layer in stored if layer.name not in skipped], name)
        if complete and report.untouched:
            raise WeightsError(
                f"{name}: has no weights of layer {report.untouched[0]!r}, expected those of all layers of the net"
            )
        values = [_value(copy) for copy in copies]
    for copy, value in zip(copies, values, strict=True):
        _put(copy.target, value)
    return report


def save_weights(net: Net, path: str | os.PathLike[str], *, with_diff: bool = False, hdf5: bool | None = None) -> None:
    """Writes HDF5 where `hdf5` says so, or the name ends in .h5; else a .caffemodel; whole or not at all. `with_diff`
    adds gradients."""
    if os.fspath(path).endswith(".h5") if hdf5 is None else hdf5:
        write_hdf5(net, Path(path), with_diff=with_diff)
        return
    try:
        write_binary(net_message(net, with_diff=with_diff), path)
    except SpecError as problem:
        raise WeightsError(str(problem)) from None


def copy_embedded(net: Net) -> None:
    """Takes over the values that the net's own definition carries (`layer { blobs { … } }`)."""
    copies = []
    for position, node in enumerate(net.graph.nodes):
        layer = node.layer
        if layer.spec.blobs:
            stored = stored_in_layer(layer.spec)
            owned = {index for index in range(layer.num_params) if net.graph.params.owns(position, index)}
            found = _copies(layer, stored, layer.context.where, needed=set(range(layer.num_params)))
            copies += [found[index] for index in sorted(owned)]
    for copy, value in zip(copies, [_value(copy) for copy in copies], strict=True):
        _put(copy.target, value)


# -- matching -------------------------------------------------------------------------------------------------------
def _match(net: Net, stored: Iterable[StoredLayer], path: str) -> tuple[list[_Copy], WeightsReport]:
    layers: dict[str, tuple[int, Layer]] = {}
    for position, node in enumerate(net.graph.nodes):
        layers.setdefault(node.layer.name, (position, node.layer))
    copies: list[_Copy] = []
    matched: dict[str, None] = {}
    ignored: dict[str, None] = {}
    for source in stored:
        if source.name not in layers:
            if source.blobs:
                ignored[source.name] = None
            continue
        position, layer = layers[source.name]
        needed = set(range(layer.num_params))
        if source.omits_shared:
            needed = {index for index in needed if net.graph.params.owns(position, index)}
        copies += _copies(layer, source, path, needed).values()
        if layer.num_params:
            matched[source.name] = None
    written = {id(copy.target) for copy in copies}
    untouched = [
        name
        for name, (_, layer) in layers.items()
        if any(id(layer.param_owner(index)) not in written for index in range(layer.num_params))
    ]
    return copies, WeightsReport(tuple(matched), tuple(ignored), tuple(untouched))


def _copies(layer: Layer, source: StoredLayer, path: str, needed: set[int]) -> Mapping[int, _Copy]:
    """What goes into this layer's parameters, by index, once numbers and shapes agree."""
    known = {str(index) for index in range(layer.num_params)}
    if not {str(index) for index in needed} <= set(source.blobs) <= known:
        raise WeightsError(
            f"{path}: layer {layer.name!r} has {_blobs_text(source)}, expected {layer.num_params} as in the net; "
            "rename the layer in the net to learn it from scratch"
        )
    copies = {}
    for index, shape in enumerate(layer.param_shapes):
        blob = source.blobs.get(str(index))
        if blob is None:
            continue
        if not blob.fits(shape):
            raise WeightsError(
                f"{path}: layer {layer.name!r}, blob {index} has shape {text_of(blob.shape)}, expected "
                f"{text_of(shape)} as in the net; rename the layer in the net to learn it from scratch"
            )
        copies[index] = _Copy(layer.param_owner(index), blob, f"{path}: layer {layer.name!r}, blob {index}")
    return copies


def _value(copy: _Copy) -> Tensor:
    """The stored value in the parameter's shape and precision."""
    array: np.ndarray = copy.blob.read(copy.what)
    return torch.from_numpy(array).to(copy.target.dtype).view(copy.target.shape)


def _put(target: nn.Parameter, value: Tensor) -> None:
    with torch.no_grad():
        target.copy_(value)


# -- words ----------------------------------------------------------------------------------------------------------
def _blobs_text(source: StoredLayer) -> str:
    if all(name.isdecimal() for name in source.blobs):
        return f"{len(source.blobs)} blob(s)"
    return f"blobs named {', '.join(sorted(source.blobs))}"


def _line(what: str, names: tuple[str, ...]) -> str:
    return f"{what}: {len(names)} layer(s)" + (f" ({', '.join(names)})" if names else "")
