"""Which kind of file something is, by what is in it; its name is not looked at.

folder      data.mdb: LMDB;  CURRENT: LevelDB
file        by signature: HDF5, LMDB;  safetensors by its header;  text: a net or a solver;
            otherwise protobuf, by the numbers and types of its outermost fields:

                NetParameter    100 or 2 hold messages (layers), 1 is a name
                ONNX's model    7 holds a message (the graph), 1 is a number
                SolverState     1 is a number (iter), 3 holds messages (history)
                BlobProto       5 or 8 hold values, 7 the shape or 1 to 4 its extents
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
from enum import Enum
from itertools import islice
from pathlib import Path

import h5py

from poseidon.errors import DataError
from poseidon.spec.limits import MAX_BINARY_BYTES, MAX_FIELDS, MAX_TEXT_BYTES
from poseidon.spec.wire import BYTES, FIXED32, FIXED64, VARINT, WireError, wire_fields

_HEAD_BYTES = 4096
_LMDB_MAGIC = struct.pack("<I", 0xBEEFC0DE)
_LMDB_MAGIC_OFFSET = 16
_MAX_HEADER_BYTES = 100 << 20
_NET_WORDS = re.compile(r"^\s*(layers?|input|input_dim|input_shape|force_backward|name)\b", re.MULTILINE)
_SOLVER_WORDS = re.compile(
    r"^\s*(net|train_net|test_net|net_param|base_lr|lr_policy|max_iter|solver_mode)\b", re.MULTILINE
)


class Kind(Enum):
    NET = "net (prototxt)"
    SOLVER = "solver (prototxt)"
    WEIGHTS = "weights (caffemodel)"
    STATE = "solver state"
    BLOB = "blob (binaryproto)"
    LMDB = "LMDB"
    LEVELDB = "LevelDB"
    HDF5 = "HDF5"
    SAFETENSORS = "safetensors"
    ONNX = "ONNX model"


def recognise(path: str | os.PathLike[str]) -> Kind:
    """The kind of a file or folder; a DataError if it is none we know."""
    name = os.fspath(path)
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            return _folder(Path(path))
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{name}: found a device, pipe or socket, expected a file or folder")
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except FileNotFoundError:
        raise DataError(f"{name}: no such file or folder; check the path") from None
    except (OSError, ValueError) as problem:
        raise DataError(f"{name}: cannot be read: {problem}") from None
    if not head:
        raise DataError(f"{name}: found an empty file, expected a net, weights, data or a model")
    if h5py.is_hdf5(name):
        return Kind.HDF5
    if head[_LMDB_MAGIC_OFFSET : _LMDB_MAGIC_OFFSET + 4] == _LMDB_MAGIC:
        return Kind.LMDB
    if _has_safetensors_header(name, head, status.st_size):
        return Kind.SAFETENSORS
    if _is_text(head):
        return _text(name, status.st_size)
    return _protobuf(name, status.st_size)


def _folder(path: Path) -> Kind:
    if (path / "data.mdb").exists():
        return Kind.LMDB
    if (path / "CURRENT").exists():
        return Kind.LEVELDB
    raise DataError(
        f"{path}: found a folder without data.mdb (LMDB) or CURRENT (LevelDB), expected a database or a file"
    )


def _has_safetensors_header(name: str, head: bytes, size: int) -> bool:
    """A number of bytes, then as many of a JSON object."""
    if len(head) < 10 or head[8:9] != b"{":
        return False
    (length,) = struct.unpack("<Q", head[:8])
    if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
        return False
    with open(name, "rb") as file:
        file.seek(8)
        header = file.read(length)
    try:
        return isinstance(json.loads(header), dict)
    except (ValueError, RecursionError):
        return False


def _is_text(head: bytes) -> bool:
    control = sum(byte < 0x20 and byte not in b"\t\n\r\f" for byte in head)
    return control == 0


def _text(name: str, size: int) -> Kind:
    if size > MAX_TEXT_BYTES:
        raise DataError(f"{name}: found {size} bytes of text, expected at most {MAX_TEXT_BYTES} of a prototxt")
    text = Path(name).read_text("utf-8", "replace")
    is_net, is_solver = (words.search(text) is not None for words in (_NET_WORDS, _SOLVER_WORDS))
    if is_net and (not is_solver or "layer" in text):
        return Kind.NET
    if is_solver:
        return Kind.SOLVER
    raise DataError(f"{name}: found text that is neither a net nor a solver, expected a prototxt")


def _protobuf(name: str, size: int) -> Kind:
    if size > MAX_BINARY_BYTES:
        raise DataError(f"{name}: found {size} bytes of an unknown format, expected at most {MAX_BINARY_BYTES}")
    data = Path(name).read_bytes()
    try:
        found = {(field.number, field.wire_type) for field in islice(wire_fields(data, 0, len(data)), MAX_FIELDS)}
    except WireError as problem:
        raise DataError(
            f"{name}: found a damaged file or one of an unknown format ({problem}); known are prototxt, caffemodel, "
            "solverstate, binaryproto, LMDB, LevelDB, HDF5, safetensors and ONNX"
        ) from None
    is_blob = bool(found & {(2, VARINT), (3, VARINT), (5, BYTES), (5, FIXED32), (8, FIXED64)})
    if (1, VARINT) in found and not is_blob:
        return Kind.ONNX if (7, BYTES) in found else Kind.STATE
    if (100, BYTES) in found or (2, BYTES) in found:
        return Kind.WEIGHTS
    if is_blob or found & {(7, BYTES), (8, BYTES)}:
        return Kind.BLOB
    numbers = ", ".join(str(number) for number, _ in sorted(found)[:8])
    raise DataError(
        f"{name}: found protobuf fields {numbers}, expected those of a net, solver state, blob or ONNX model"
    )
