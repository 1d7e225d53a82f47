"""Weights in HDF5: a group `data/<layer>` per layer with a dataset per blob, named 0, 1, …

A blob that several layers share is stored at its owner only. Gradients, if asked for, go to `diff/<layer>/<i>`, at
every sharer. A layer name with slashes becomes nested groups.

HDF5 files can point outside themselves, through links, external storage and virtual datasets: all refused.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from poseidon.errors import WeightsError
from poseidon.net.layer import Layer, Shape, count_of, text_of
from poseidon.net.weights_copy import Weights, WeightsView
from poseidon.net.weights_stored import StoredLayer

if TYPE_CHECKING:
    from poseidon.net.net import Net

# Hundreds of times what the largest nets have.
_MAX_OBJECTS = 200_000
# HDF5 reads whole chunks: one larger than its dataset and than this would only serve to fill memory.
_MAX_CHUNK_BYTES = 64 << 20
# Whatever libhdf5 finds wrong with a file reaches Python as one of these.
H5_ERRORS = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError)


def is_hdf5(path: str) -> bool:
    """True if the file starts with HDF5's signature."""
    return bool(h5py.is_hdf5(path))


def _reason(problem: Exception) -> str:
    """What libhdf5 said; a KeyError's own text would put it in quotes."""
    return str(problem.args[0]) if isinstance(problem, KeyError) and problem.args else str(problem)


# -- reading --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class H5Blob:
    """One dataset of numbers, checked before it is read."""

    dataset: h5py.Dataset

    @property
    def shape(self) -> Shape:
        return tuple(self.dataset.shape)

    def fits(self, shape: Shape) -> bool:
        return self.shape == shape

    def read(self, what: str) -> np.ndarray:
        try:
            self._check(what)
            values = np.asarray(self.dataset[()])
        except H5_ERRORS as problem:
            raise WeightsError(f"{what} cannot be read: {_reason(problem)}; copy or download the file again") from None
        single = values.dtype.kind == "f" and values.dtype.itemsize <= 4
        return np.ascontiguousarray(values, np.float32 if single else np.float64)

    def _check(self, what: str) -> None:
        dataset = self.dataset
        if dataset.dtype.kind not in "fiu":
            raise WeightsError(f"{what} holds values of type {dataset.dtype}, expected numbers")
        if dataset.is_virtual or dataset.external:
            raise WeightsError(f"{what} keeps its values in another file, expected them in this one: refused")
        if dataset.chunks is not None:
            chunk_elems = count_of(dataset.chunks)
            if chunk_elems > dataset.size and chunk_elems * dataset.dtype.itemsize > _MAX_CHUNK_BYTES:
                raise WeightsError(
                    f"{what} is stored in chunks of {text_of(dataset.chunks)}, "
                    f"larger than its shape {text_of(self.shape)}: refused"
                )


@contextmanager
def stored_in_hdf5(path: str) -> Iterator[list[StoredLayer]]:
    """The layers of an HDF5 weights file, which stays open meanwhile."""
    try:
        file = h5py.File(path, "r", locking="best-effort")
    except H5_ERRORS as problem:
        raise WeightsError(f"{path}: not a readable HDF5 file: {_reason(problem)}; copy or download it again") from None
    with file:
        try:
            layers = _layers(file, path)
        except H5_ERRORS as problem:
            raise WeightsError(f"{path}: damaged HDF5 file: {_reason(problem)}; copy or download it again") from None
        yield layers


def _layers(file: h5py.File, path: str) -> list[StoredLayer]:
    """Every group under /data that has datasets of its own or nothing below it."""
    data = hdf5_member(file, "data", path) if "data" in file else None
    if not isinstance(data, h5py.Group):
        raise WeightsError(f"{path}: found no group 'data', expected weights as Caffe writes them to HDF5")
    layers: list[StoredLayer] = []
    # Links may form a cycle, and groups nest deeper than Python's stack: every object once, from an explicit stack.
    waiting, seen = [("", data)], {_address(data)}
    while waiting:
        name, group = waiting.pop()
        blobs: dict[str, H5Blob] = {}
        below: list[tuple[str, h5py.Group]] = []
        for key in group:
            member = hdf5_member(group, key, path)
            if isinstance(member, h5py.Dataset):
                blobs[key] = H5Blob(member)
            elif isinstance(member, h5py.Group) and _address(member) not in seen:
                seen.add(_address(member))
                below.append((f"{name}/{key}" if name else key, member))
            if len(seen) + len(blobs) > _MAX_OBJECTS:
                raise WeightsError(f"{path}: found more than {_MAX_OBJECTS} objects, expected fewer: refused")
        if name and (blobs or not below):
            layers.append(StoredLayer(name, blobs, omits_shared=True))
        waiting += reversed(below)
    return layers


def hdf5_member(group: h5py.Group, key: str, path: str) -> h5py.HLObject:
    """What a group holds under a name; refuses links that lead elsewhere."""
    if not isinstance(group.get(key, getlink=True), h5py.HardLink):
        raise WeightsError(f"{path}: {group.name}/{key} is a link to somewhere else, expected the data itself: refused")
    return group[key]


def _address(group: h5py.Group) -> object:
    return h5py.h5o.get_info(group.id).addr


# -- writing --------------------------------------------------------------------------------------------------------
def write_hdf5(net: Net, path: Path, *, with_diff: bool, weights: Weights | None = None) -> None:
    """Writes beside the target, then renames: after a crash there is the old file or the new one, whole.

    `weights`: those to write (None: the net's as they are).
    """
    layers = _distinct_layers(net, path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with h5py.File(temporary, "x") as file:
            _fill(net, layers, file, weights or WeightsView(), with_diff=with_diff)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except H5_ERRORS as problem:
        raise WeightsError(f"{path}: cannot be written: {_reason(problem)}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _distinct_layers(net: Net, path: Path) -> list[Layer]:
    layers = [node.layer for node in net.graph.nodes]
    names = {layer.name for layer in layers}
    seen: set[str] = set()
    for layer in layers:
        parts = layer.name.split("/")
        # A layer `a` with a blob 0 and a layer `a/0` would need the same place.
        clash = "/".join(parts[:-1]) in names and parts[-1].isdecimal()
        if layer.name in seen or clash or "\0" in layer.name or not {"", "."}.isdisjoint(parts):
            raise WeightsError(
                f"{path}: layer {layer.name!r} cannot be stored in HDF5, which needs one path per layer and takes "
                "no other layer of that name or path; rename the layer or save a .caffemodel"
            )
        seen.add(layer.name)
    return layers


def _fill(net: Net, layers: list[Layer], file: h5py.File, weights: Weights, *, with_diff: bool) -> None:
    data = file.create_group("data")
    diff = file.create_group("diff") if with_diff else None
    for position, layer in enumerate(layers):
        values = data.require_group(layer.name)
        gradients = diff.require_group(layer.name) if diff is not None else None
        for index in range(layer.num_params):
            if net.graph.params.owns(position, index):
                values.create_dataset(str(index), data=weights.value(layer, index))
            if gradients is not None:
                gradients.create_dataset(str(index), data=weights.diff(layer, index))
