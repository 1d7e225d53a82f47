"""ONNX files from anywhere: read without running anything, within limits.

size            at most 2 GiB, protobuf's own end; weights beside the file count too
external data   only regular files in the model's own folder or below: no absolute paths, no `..`, no links out of it
structure       checked by onnx's own checker before anything is believed
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from poseidon.errors import ConvertError
from poseidon.spec.files import read_bytes
from poseidon.spec.limits import MAX_BINARY_BYTES

MAX_NODES = 100_000
MAX_WEIGHT_BYTES = 8 << 30


def read_onnx(path: str) -> Any:
    """The onnx.ModelProto of a file, weights included."""
    import onnx
    from google.protobuf.message import DecodeError

    data = read_bytes(path, MAX_BINARY_BYTES, "protobuf cannot hold more; keep the weights beside the model")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as problem:
        raise ConvertError(f"{path}: not an ONNX model: {problem}; copy or download it again") from None
    if not _is_text(model):
        raise ConvertError(f"{path}: not an ONNX model: a name in it is no text; copy or download it again")
    if not model.graph.node:
        raise ConvertError(f"{path}: found no nodes, expected an ONNX model")
    if len(model.graph.node) > MAX_NODES:
        raise ConvertError(f"{path}: found {len(model.graph.node)} nodes, expected at most {MAX_NODES}: refused")
    if model.functions or any(node.domain not in ("", "ai.onnx") for node in model.graph.node):
        foreign = sorted({node.domain for node in model.graph.node} - {"", "ai.onnx"})
        raise ConvertError(
            f"{path}: uses operators or functions of its own ({', '.join(foreign) or 'functions'}), expected ONNX's"
        )
    _take_in_external(model, Path(path))
    try:
        onnx.checker.check_model(model)
    except Exception as problem:  # its own kinds, and on damaged files whatever it stumbles over
        raise ConvertError(f"{path}: not a sound ONNX model: {str(problem).splitlines()[0]}") from None
    return model


def _is_text(message: Any) -> bool:
    """Whether all that should be text is: protobuf hands out bytes where it is not UTF-8."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        if field.type == field.TYPE_STRING and not all(isinstance(entry, str) for entry in values):
            return False
        if field.type == field.TYPE_MESSAGE and not all(map(_is_text, values)):
            return False
    return True


def _take_in_external(model: Any, path: Path) -> None:
    """Weights beside the model become part of it; onnx's own loader is not asked to follow paths."""
    folder = path.resolve().parent
    total = 0
    for tensor in _tensors(model.graph):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        facts = {entry.key: entry.value for entry in tensor.external_data}
        total += _take_in(tensor, facts, folder, str(path))
        if total > MAX_WEIGHT_BYTES:
            raise ConvertError(f"{path}: weights beside it are more than {MAX_WEIGHT_BYTES} bytes: refused")


def _take_in(tensor: Any, facts: dict[str, str], folder: Path, path: str) -> int:
    where = facts.get("location", "")
    target = Path(os.path.realpath(folder / where))
    if not where or os.path.isabs(where) or not target.is_relative_to(folder) or not target.is_file():
        raise ConvertError(
            f"{path}: tensor {tensor.name!r} keeps its values in {where!r}, "
            "expected a file in the model's folder: refused"
        )
    try:
        offset, length = int(facts.get("offset", 0)), int(facts.get("length", -1))
        expected = int(np.prod(tensor.dims, dtype=np.int64)) * _item_bytes(tensor)
        length = expected if length < 0 else length
        if offset < 0 or length != expected or offset + length > target.stat().st_size:
            raise ValueError(f"{length} bytes at {offset} of {target.stat().st_size}, expected {expected}")
        with target.open("rb") as file:
            file.seek(offset)
            tensor.raw_data = file.read(length)
    except (ValueError, OSError, KeyError) as problem:
        raise ConvertError(f"{path}: tensor {tensor.name!r} in {where!r} cannot be read: {problem}") from None
    tensor.data_location = tensor.DEFAULT
    del tensor.external_data[:]
    return length


def _item_bytes(tensor: Any) -> int:
    from onnx import helper

    return int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _tensors(graph: Any) -> list[Any]:
    found = list(graph.initializer)
    for node in graph.node:
        found += [attribute.t for attribute in node.attribute if attribute.HasField("t")]
    return found


def array_of(tensor: Any, path: str) -> np.ndarray:
    """A tensor's values; what it claims must be what it holds."""
    from onnx import numpy_helper

    try:
        return np.array(numpy_helper.to_array(tensor))
    except Exception as problem:  # damaged tensors surface as whatever NumPy or onnx stumble over first
        raise ConvertError(f"{path}: tensor {tensor.name!r} is damaged: {problem}") from None
