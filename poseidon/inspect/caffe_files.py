"""Caffe's own files: nets and solvers as text, weights, solver states and single blobs as binary protobuf.

The shapes in a net are found by building it, in the TEST phase; a net that reads data, writes files or runs Python code
is not built for that.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from poseidon.errors import PoseidonError
from poseidon.inspect.contents import Array, Fact, Findings, Part
from poseidon.net import Net
from poseidon.net.layer import text_of
from poseidon.solver.state_file import open_state
from poseidon.spec import (
    NetSource,
    blob_shape,
    blob_to_array,
    caffe_pb2,
    format_message,
    read_binary,
    read_weights_proto,
)
from poseidon.spec import read_net as read_net_source
from poseidon.spec import read_solver as read_solver_message

# Building these would read or write files, or run code.
_ACTIVE_TYPES = frozenset({"Data", "HDF5Data", "HDF5Output", "ImageData", "Python", "WindowData"})


def read_net(path: str, num_records: int, stack: ExitStack) -> Findings:
    source = read_net_source(path)
    net, reason = _built(source)
    facts: list[Fact] = [("name", source.net.name), ("layers", len(source.net.layer))]
    if net is None:
        facts.append(("shapes", f"not known: {reason}"))
    else:
        facts.append(("parameters", sum(entry.value.numel() for entry in net.learnable)))
    return Findings(tuple(facts), tuple(_net_part(layer, net) for layer in source.net.layer))


def _built(source: NetSource) -> tuple[Net | None, str]:
    active = next((layer for layer in source.net.layer if layer.type in _ACTIVE_TYPES), None)
    if active is not None:
        return None, f"layer {active.name!r} ({active.type}) would have to run; give the deploy net"
    try:
        return Net(source, phase="TEST"), ""
    except PoseidonError as problem:
        return None, str(problem)


def _net_part(layer: caffe_pb2.LayerParameter, net: Net | None) -> Part:
    built = None if net is None else net.layers.get(layer.name)
    arrays: tuple[Array, ...] = ()
    tops = list(layer.top)
    if net is not None and built is not None:
        arrays = tuple(
            Array(str(index), shape, "float32", 4 * int(np.prod(shape, dtype=np.int64)))
            for index, shape in enumerate(built.param_shapes)
        )
        tops = [f"{top} ({text_of(net.blob_shapes[top])})" if top in net.blob_shapes else top for top in tops]
    return Part(layer.name, layer.type, _flow(list(layer.bottom), tops), arrays, _options(layer))


def _flow(bottoms: list[str], tops: list[str]) -> str:
    return f"{', '.join(bottoms)} -> {', '.join(tops)}".strip()


def _options(layer: caffe_pb2.LayerParameter) -> str:
    """Everything a layer says but its name and values."""
    bare = caffe_pb2.LayerParameter()
    bare.CopyFrom(layer)
    for field in ("name", "blobs", "phase"):
        bare.ClearField(field)
    return format_message(bare)


def read_solver(path: str, num_records: int, stack: ExitStack) -> Findings:
    solver = read_solver_message(path)
    facts: list[Fact] = []
    for field, value in solver.ListFields():
        if field.message_type is None:
            values = list(value) if field.is_repeated else [value]
            if field.enum_type is not None:
                values = [field.enum_type.values_by_number[number].name for number in values]
            # Floats as they were written: 0.01, not 0.009999999776482582.
            facts += [(field.name, float(f"{one:.6g}") if isinstance(one, float) else one) for one in values]
    parts = tuple(Part(layer.name, layer.type, "", (), _options(layer)) for layer in solver.net_param.layer)
    return Findings(tuple(facts), parts)


def read_weights(path: str, num_records: int, stack: ExitStack) -> Findings:
    net = read_weights_proto(path)
    parts = tuple(_weights_part(layer, path) for layer in net.layer)
    num_values = sum(int(np.prod(array.shape, dtype=np.int64)) for part in parts for array in part.arrays)
    return Findings((("name", net.name), ("layers", len(parts)), ("parameters", num_values)), parts)


def _weights_part(layer: caffe_pb2.LayerParameter, path: str) -> Part:
    arrays = tuple(
        _blob_array(str(index), blob, f"{path}: layer {layer.name!r}, blob {index}")
        for index, blob in enumerate(layer.blobs)
    )
    return Part(layer.name, layer.type, _flow(list(layer.bottom), list(layer.top)), arrays, _options(layer))


def _blob_array(name: str, blob: caffe_pb2.BlobProto, what: str) -> Array:
    is_double = bool(len(blob.double_data))
    num_bytes = 8 * len(blob.double_data) if is_double else 4 * len(blob.data)
    dtype = "float64" if is_double else "float32"
    return Array(name, blob_shape(blob), dtype, num_bytes, partial(blob_to_array, blob, what))


def read_state(path: str, num_records: int, stack: ExitStack) -> Findings:
    state = stack.enter_context(open_state(Path(path)))
    arrays = []
    for index, blob in enumerate(state.history):
        num_bytes = 4 * int(np.prod(blob.shape, dtype=np.int64))
        reader = partial(blob.read, f"{path}: history {index}")
        arrays.append(Array(str(index), tuple(blob.shape), "float32", num_bytes, reader))
    facts: tuple[Fact, ...] = (
        ("iteration", state.iteration),
        ("current step", state.current_step),
        ("weights", state.learned_net or "none named"),
    )
    return Findings(facts, (Part("history", "", "", tuple(arrays)),), kind="solver state")


def read_blob(path: str, num_records: int, stack: ExitStack) -> Findings:
    blob = read_binary(path, caffe_pb2.BlobProto)
    array = _blob_array("values", blob, path)
    facts: list[Fact] = [("shape", text_of(array.shape))]
    inner = list(array.shape)
    while len(inner) > 3 and inner[0] == 1:
        inner = inner[1:]
    if len(inner) == 3:
        means = blob_to_array(blob, path).reshape(inner).mean((1, 2), dtype=np.float64)
        facts.append(("mean per channel", ", ".join(f"{value:.4f}" for value in means[:16])))
    return Findings(tuple(facts), (Part("blob", "", "", (array,)),))
