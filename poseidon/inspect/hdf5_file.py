"""HDF5: weights and solver states as Caffe writes them, or any datasets, group by group.

Links that lead elsewhere are named and not followed; values kept in other files are not read.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from poseidon.errors import DataError
from poseidon.inspect.caffe_files import read_state
from poseidon.inspect.contents import Array, Fact, Findings, Part, Record
from poseidon.net.weights_hdf5 import H5_ERRORS, H5Blob, stored_in_hdf5

_MAX_OBJECTS = 100_000
_MAX_RECORD_BYTES = 64 << 20


def read_hdf5(path: str, num_records: int, stack: ExitStack) -> Findings:
    try:
        file = h5py.File(path, "r", locking="best-effort")
    except H5_ERRORS as problem:
        raise DataError(f"{path}: not a readable HDF5 file: {problem}") from None
    stack.enter_context(file)
    try:
        names = set(file)
        if {"iter", "history"} <= names:
            return read_state(path, num_records, stack)
        if _is_weights(file):
            return _weights(path, stack)
        return _datasets(file, path, num_records)
    except H5_ERRORS as problem:
        raise DataError(f"{path}: damaged HDF5 file: {problem}") from None


def _is_weights(file: h5py.File) -> bool:
    """Caffe's weights are one group `data` (and `diff`) of groups."""
    is_own = isinstance(file.get("data", getlink=True), h5py.HardLink)
    return is_own and set(file) <= {"data", "diff"} and file.get("data", getclass=True) is h5py.Group


def _weights(path: str, stack: ExitStack) -> Findings:
    layers = stack.enter_context(stored_in_hdf5(path))
    parts = tuple(
        Part(layer.name, "", "", tuple(_array(name, blob, path) for name, blob in layer.blobs.items()))
        for layer in layers
    )
    num_values = sum(int(np.prod(array.shape, dtype=np.int64)) for part in parts for array in part.arrays)
    return Findings((("layers", len(parts)), ("parameters", num_values)), parts, kind="weights (HDF5)")


def _array(name: str, blob: object, path: str) -> Array:
    assert isinstance(blob, H5Blob)
    dataset = blob.dataset
    what = f"{path}: {dataset.name}"
    readable = partial(blob.read, what) if dataset.dtype.kind in "fiu" else None
    num_bytes = int(dataset.size or 0) * dataset.dtype.itemsize
    return Array(name, tuple(dataset.shape or ()), str(dataset.dtype), num_bytes, readable)


def _datasets(file: h5py.File, path: str, num_records: int) -> Findings:
    groups: dict[str, list[Array]] = {}
    links: list[str] = []
    top: list[h5py.Dataset] = []
    waiting: list[tuple[str, h5py.Group]] = [("", file)]
    seen = {_address(file)}
    num_found = 0
    while waiting:
        name, group = waiting.pop()
        for key in group:
            num_found += 1
            if num_found > _MAX_OBJECTS:
                raise DataError(f"{path}: found more than {_MAX_OBJECTS} objects, expected fewer: refused")
            inner = f"{name}/{key}" if name else key
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                links.append(inner)
                continue
            member = group[key]
            if isinstance(member, h5py.Dataset):
                groups.setdefault(name, []).append(_array(key, H5Blob(member), path))
                top += [member] if not name else []
            elif isinstance(member, h5py.Group) and _address(member) not in seen:
                seen.add(_address(member))
                waiting.append((inner, member))
    facts: list[Fact] = [("datasets", sum(map(len, groups.values())))]
    facts += [("link, not followed", link) for link in links[:20]]
    parts = tuple(Part(name or "/", "", "", tuple(found)) for name, found in sorted(groups.items()))
    return Findings(tuple(facts), parts, _rows(top, path, num_records))


def _address(group: h5py.Group) -> object:
    return h5py.h5o.get_info(group.id).addr


def _rows(datasets: list[h5py.Dataset], path: str, num_records: int) -> tuple[Record, ...]:
    """The first rows, where all datasets have as many and are numbers: a data set for HDF5Data."""
    sizes = {dataset.shape[:1] for dataset in datasets}
    usable = all(
        dataset.dtype.kind in "fiu" and not dataset.is_virtual and not dataset.external for dataset in datasets
    )
    if not datasets or len(sizes) != 1 or () in sizes or not usable:
        return ()
    if any(_row_bytes(dataset) > _MAX_RECORD_BYTES for dataset in datasets):
        return ()
    largest = max(datasets, key=lambda dataset: int(np.prod(dataset.shape[1:], dtype=np.int64)))
    records = []
    for row in range(min(num_records, largest.shape[0])):
        notes = [_note(dataset, row) for dataset in datasets if dataset.name != largest.name]
        shape = tuple(largest.shape[1:])
        label = _label(datasets, row)
        records.append(Record(f"row {row}", label, shape, str(largest.dtype), _row_bytes(largest), ", ".join(notes)))
    return tuple(records)


def _row_bytes(dataset: h5py.Dataset) -> int:
    """What reading one row may take: HDF5 reads whole chunks."""
    shape = dataset.chunks if dataset.chunks is not None else dataset.shape[1:]
    return int(np.prod(shape, dtype=np.float64)) * dataset.dtype.itemsize


def _label(datasets: list[h5py.Dataset], row: int) -> float | None:
    labels = [dataset for dataset in datasets if Path(dataset.name).name == "label"]
    if not labels or int(np.prod(labels[0].shape[1:], dtype=np.int64)) != 1:
        return None
    return float(np.asarray(labels[0][row]).reshape(-1)[0])


def _note(dataset: h5py.Dataset, row: int) -> str:
    values = np.asarray(dataset[row]).reshape(-1)
    return (
        f"{Path(dataset.name).name} "
        + " ".join(f"{value:g}" for value in values[:4])
        + (" …" if values.size > 4 else "")
    )
