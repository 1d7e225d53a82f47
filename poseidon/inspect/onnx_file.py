"""ONNX models, read field by field from the wire: no ONNX library is needed, and nothing is built that is not shown.

    ModelProto    1 ir_version, 2 producer_name, 3 producer_version, 7 graph, 8 opset_import (1 domain, 2 version)
    GraphProto    1 node, 2 name, 5 initializer, 11 input, 12 output
    NodeProto     1 input, 2 output, 3 name, 4 op_type
    TensorProto   1 dims, 2 data_type, 4 float_data, 5 int32_data, 7 int64_data, 8 name, 9 raw_data, 10 double_data,
                  14 data_location (1: in another file, which is not read)
    ValueInfo     1 name, 2 type { 1 tensor { 1 element type, 2 shape { 1 dim { 1 value, 2 name } } } }

An initializer is shown with the first node that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import numpy as np

from poseidon.errors import DataError
from poseidon.inspect.contents import Array, Fact, Findings, Part
from poseidon.spec.files import read_bytes
from poseidon.spec.limits import MAX_BINARY_BYTES, MAX_MESSAGES
from poseidon.spec.wire import BYTES, VARINT, WireError, WireField, packed_varints, varint_of, wire_fields

_EXTERNAL = 1
_MAX_AXES = 32
_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip


def read_onnx(path: str, num_records: int, stack: ExitStack) -> Findings:
    data = read_bytes(path, MAX_BINARY_BYTES, "larger models keep their values in other files, which are not read")
    try:
        return _Reader(data, path).findings()
    except WireError as problem:
        raise DataError(f"{path}: damaged ONNX model: {problem}") from None


class _Reader:
    def __init__(self, data: bytes, path: str) -> None:
        self._data = data
        self._path = path
        self._num_messages = 0

    def findings(self) -> Findings:
        whole = WireField(0, BYTES, 0, len(self._data))
        graph = next(self._children(whole, 7), None)
        if graph is None:
            raise DataError(f"{self._path}: found no graph, expected an ONNX model")
        parts = self._parts(graph)
        facts: list[Fact] = [("graph", self._text(graph, 2)), ("IR version", self._number(whole, 1, 0))]
        producer = f"{self._text(whole, 2)} {self._text(whole, 3)}".strip()
        facts.append(("producer", producer or "not named"))
        for opset in self._children(whole, 8):
            facts.append(("opset", f"{self._text(opset, 1) or 'ai.onnx'} {self._number(opset, 2, 0)}"))
        facts += [("input", self._value_info(info)) for info in self._children(graph, 11)]
        facts += [("output", self._value_info(info)) for info in self._children(graph, 12)]
        num_values = sum(int(np.prod(array.shape, dtype=np.float64)) for part in parts for array in part.arrays)
        return Findings((*facts, ("nodes", sum(1 for p in parts if p.kind)), ("parameters", num_values)), tuple(parts))

    def _parts(self, graph: WireField) -> list[Part]:
        waiting = {}
        for tensor in self._children(graph, 5):
            array = self._array(tensor)
            waiting[array.name] = array
        parts = []
        for position, node in enumerate(self._children(graph, 1)):
            inputs = [self._string(field) for field in self._fields(node) if field.number == 1]
            outputs = [self._string(field) for field in self._fields(node) if field.number == 2]
            own = tuple(waiting.pop(name) for name in dict.fromkeys(inputs) if name in waiting)
            kept = [name for name in inputs if name not in {array.name for array in own}]
            flow = f"{', '.join(kept)} -> {', '.join(outputs)}".strip()
            name = self._text(node, 3) or (outputs[0] if outputs else f"node {position}")
            parts.append(Part(name, self._text(node, 4) or "?", flow, own))
        if waiting:
            parts.append(Part("(read by no node)", "", "", tuple(waiting.values())))
        return parts

    def _array(self, tensor: WireField) -> Array:
        shape = tuple(self._numbers(tensor, 1))
        if len(shape) > _MAX_AXES or any(extent < 0 or extent >= 1 << 62 for extent in shape):
            raise DataError(f"{self._path}: found a tensor of shape {shape[:8]}, expected extents of at least 0")
        code = self._number(tensor, 2, 0)
        dtype = _TYPES.get(code, f"type {code}")
        is_external = self._number(tensor, 14, 0) == _EXTERNAL
        num_bytes = (
            0 if is_external else sum(f.end - f.start for f in self._fields(tensor) if f.number in (4, 5, 7, 9, 10))
        )
        name = self._text(tensor, 8)
        readable = None if is_external or code not in _TYPES else partial(self._values, tensor, dtype, shape, name)
        return Array(name, shape, f"{dtype}, in another file" if is_external else dtype, num_bytes, readable)

    def _values(self, tensor: WireField, dtype: str, shape: tuple[int, ...], name: str) -> np.ndarray:
        raw = [field for field in self._fields(tensor) if field.number == 9 and field.wire_type == BYTES]
        try:
            if raw:
                stored = self._data[raw[-1].start : raw[-1].end]
                return _from_raw(stored, dtype).reshape(shape)
            floats = {"float32": (4, "<f4"), "float64": (10, "<f8")}.get(dtype)
            if floats is not None:
                number, kind = floats
                stored = b"".join(self._data[f.start : f.end] for f in self._fields(tensor) if f.number == number)
                return np.frombuffer(stored, kind).reshape(shape)
            return np.array(self._numbers(tensor, 7 if dtype == "int64" else 5), np.int64).reshape(shape)
        except ValueError as problem:
            raise DataError(f"{self._path}: tensor {name!r} of shape {shape} is damaged: {problem}") from None

    def _value_info(self, info: WireField) -> str:
        name = self._text(info, 1)
        for kind in self._children(info, 2):
            for tensor in self._children(kind, 1):
                extents = [
                    self._text(dim, 2) or str(self._number(dim, 1, 0))
                    for shape in self._children(tensor, 2)
                    for dim in self._children(shape, 1)
                ]
                element = _TYPES.get(self._number(tensor, 1, 0), "?")
                return f"{name}: {' x '.join(extents) or '()'} {element}"
        return name

    # -- fields -----------------------------------------------------------------------------------------------------
    def _fields(self, message: WireField) -> Iterator[WireField]:
        return wire_fields(self._data, message.start, message.end)

    def _children(self, message: WireField, number: int) -> Iterator[WireField]:
        for field in self._fields(message):
            if field.number == number and field.wire_type == BYTES:
                self._num_messages += 1
                if self._num_messages > MAX_MESSAGES:
                    raise DataError(
                        f"{self._path}: found more than {MAX_MESSAGES} messages, expected far fewer: refused"
                    )
                yield field

    def _string(self, field: WireField) -> str:
        return self._data[field.start : field.end].decode("utf-8", "replace") if field.wire_type == BYTES else ""

    def _text(self, message: WireField, number: int) -> str:
        return "".join(self._string(field) for field in self._fields(message) if field.number == number)

    def _number(self, message: WireField, number: int, default: int) -> int:
        found = [f for f in self._fields(message) if f.number == number and f.wire_type == VARINT]
        return varint_of(self._data, found[-1]) if found else default

    def _numbers(self, message: WireField, number: int) -> list[int]:
        """A repeated number, packed or not."""
        found: list[int] = []
        for field in self._fields(message):
            if field.number == number and field.wire_type == VARINT:
                found.append(varint_of(self._data, field))
            elif field.number == number and field.wire_type == BYTES:
                found += packed_varints(self._data, field)
        return [value - (1 << 64) if value >= 1 << 63 else value for value in found]


def _from_raw(stored: bytes, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (np.frombuffer(stored, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(stored, np.dtype(dtype).newbyteorder("<"))
