"""The reader of each kind of file: (path, number of records wanted, a stack that closes what must stay open)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from poseidon.inspect.caffe_files import read_blob, read_net, read_solver, read_state, read_weights
from poseidon.inspect.contents import Findings
from poseidon.inspect.databases import read_leveldb, read_lmdb
from poseidon.inspect.hdf5_file import read_hdf5
from poseidon.inspect.onnx_file import read_onnx
from poseidon.inspect.recognise import Kind
from poseidon.inspect.safetensors_file import read_safetensors

READERS: dict[Kind, Callable[[str, int, ExitStack], Findings]] = {
    Kind.NET: read_net,
    Kind.SOLVER: read_solver,
    Kind.WEIGHTS: read_weights,
    Kind.STATE: read_state,
    Kind.BLOB: read_blob,
    Kind.LMDB: read_lmdb,
    Kind.LEVELDB: read_leveldb,
    Kind.HDF5: read_hdf5,
    Kind.SAFETENSORS: read_safetensors,
    Kind.ONNX: read_onnx,
}
