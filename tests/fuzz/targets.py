"""What is fed with damaged and hostile input: everything that reads a file somebody else may have written.

A target takes bytes and returns normally, or raises a PoseidonError. Anything else is a bug: another exception, a
crash, a hang, memory beyond what the input can ask for. `tools/fuzz.py` feeds targets by coverage, the tests here by
hypothesis.

    net_text, solver_text         a prototxt, read and brought to the current format
    net_build                     choices that change a known net's text (mutate.py), built and run
    solver_build                  the same with a solver's text, and one step
    weights, weights_hdf5         a file loaded into a net
    state, state_hdf5, sidecar    a file of a snapshot that is restored into a solver
    datum, database               a database's record; the same through an LMDB and a Data layer
    mean                          a mean file
    onnx                          an ONNX model, made into a net
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import lmdb
import numpy as np
import torch

from poseidon.convert.extents import Extents
from poseidon.convert.to_caffe.from_onnx import read_graph
from poseidon.convert.to_onnx.model import model_of
from poseidon.data.datum import parse_datum
from poseidon.data.mean import read_mean
from poseidon.data.transformer import Transformer, TransformOptions
from poseidon.errors import PoseidonError
from poseidon.net import Net, Stepwise
from poseidon.solver import Solver, sidecar
from poseidon.spec import array_to_blob, array_to_datum, caffe_pb2, filter_net, insert_splits, parse_net, parse_solver
from tests.fuzz.choices import Choices
from tests.fuzz.corpus import SOLVER_FOLDERS, golden_files, images, net_texts, solver_texts
from tests.fuzz.mutate import mutated

# A machine this small has no room for what hostile numbers ask for, so that it is seen if a check is missing.
PRETENDED_BYTES = 64 << 20
# What is run forward and backward is kept small, so that many are.
MOST_ELEMS_RUN = 100_000


@dataclass(frozen=True, slots=True)
class Target:
    """`feed` takes an input; `seeds` are good ones to start from, none where any bytes are as good as others."""

    name: str
    feed: Callable[[bytes], None]
    seeds: list[bytes]


def is_refused(target: Target, data: bytes) -> bool:
    """Feeds a target; anything but acceptance and our own errors is raised."""
    try:
        target.feed(data)
    except PoseidonError:
        return True
    return False


@contextlib.contextmanager
def small_machine() -> Iterator[None]:
    """While inside, nets are built as on a machine with PRETENDED_BYTES of memory."""
    with mock.patch("poseidon.net.memory.device_bytes", return_value=PRETENDED_BYTES):
        yield


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """While inside, relative paths start in the folder."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def make_targets(folder: Path) -> dict[str, Target]:
    """All targets; they keep their files in the folder."""
    made = [
        Target("net_text", _feed_net_text, [text.encode() for text in net_texts()]),
        Target("solver_text", _feed_solver_text, [text.encode() for text in solver_texts()]),
        Target("net_build", NetBuild(folder).feed, []),
        Target("solver_build", SolverBuild(folder).feed, []),
        *_weights_targets(folder),
        *_snapshot_targets(folder),
        Target("datum", _feed_datum, _datums()),
        Target("database", Database(folder).feed, _datums()),
        Target("mean", lambda data: _feed_mean(data, folder / "mean.binaryproto"), _means()),
        Target("onnx", lambda data: _feed_onnx(data, folder / "model.onnx"), _onnx_models()),
    ]
    return {target.name: target for target in made}


# -- text -----------------------------------------------------------------------------------------------------------
def _feed_net_text(data: bytes) -> None:
    source = parse_net(data.decode("utf-8", "surrogateescape"))
    insert_splits(filter_net(source, 0, 0, ()))


def _feed_solver_text(data: bytes) -> None:
    parse_solver(data.decode("utf-8", "surrogateescape"))


# -- nets -----------------------------------------------------------------------------------------------------------
class NetBuild:
    """Nets from changed texts, built in a folder with the files that the texts name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "net_build"
        self._folder.mkdir(exist_ok=True)
        self._texts = net_texts()
        for name, data in golden_files().items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def feed(self, data: bytes) -> None:
        choices = Choices(data)
        phase, fill = choices.one_of(("TRAIN", "TEST")), choices.one_of(_FILLS)
        text = mutated(self._texts, choices)
        with small_machine(), inside(self._folder):
            net = Net(parse_net(text), phase=phase, seed=1)
            if _num_elems(net) <= MOST_ELEMS_RUN:
                _run(net, fill)


def _num_elems(net: Net) -> int:
    blobs = sum(int(np.prod(shape, dtype=object)) for shape in net.blob_shapes.values())
    return blobs + sum(parameter.numel() for parameter in net.parameters())


def _run(net: Net, fill: Callable[[torch.Size], torch.Tensor]) -> None:
    """One pass each way, layer by layer and in one piece."""
    run = Stepwise(net)
    for name in net.inputs:
        run.blobs[name].data = fill(run.blobs[name].data.shape)
    run.forward()
    run.backward()
    outputs = net({name: run.blobs[name].data for name in net.inputs})
    if outputs.loss is not None and outputs.loss.requires_grad:
        outputs.loss.backward()


def _normal(shape: torch.Size) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _labels(shape: torch.Size) -> torch.Tensor:
    return torch.randint(-1, 4, shape, generator=torch.Generator().manual_seed(1)).float()


_FILLS: tuple[Callable[[torch.Size], torch.Tensor], ...] = (
    _normal,
    _labels,
    torch.zeros,
    lambda shape: torch.full(shape, float("nan")),
    lambda shape: torch.full(shape, 1e30),
)


# -- solvers --------------------------------------------------------------------------------------------------------
class SolverBuild:
    """Solvers from changed texts, built in a folder with a net and data of the names that the texts use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "solver_build"
        shutil.copytree(SOLVER_FOLDERS[0], self._folder)

    def feed(self, data: bytes) -> None:
        text = mutated(solver_texts(), Choices(data))
        with small_machine(), inside(self._folder):
            solver = Solver(parse_solver(text))
            if solver.param.iter_size <= 4 and _num_elems(solver.net) <= MOST_ELEMS_RUN:
                solver.step(1)


# -- weights --------------------------------------------------------------------------------------------------------
WEIGHTS_NET = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 2 dim: 4 dim: 4 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv" param { name: "w" }
    convolution_param { num_output: 3 kernel_size: 2 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "a/fc" type: "InnerProduct" bottom: "conv" top: "fc"
    inner_product_param { num_output: 4 weight_filler { type: "gaussian" } } }
layer { name: "twin" type: "Convolution" bottom: "x" top: "twin" param { name: "w" }
    convolution_param { num_output: 3 kernel_size: 2 bias_term: false } }
"""


class Weights:
    """Files loaded into a net, whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._net = Net.from_text(WEIGHTS_NET, seed=1)

    def seeds(self) -> list[bytes]:
        found = []
        for with_diff in (False, True):
            self._net.save(self._path, with_diff=with_diff)
            found.append(self._path.read_bytes())
        return found

    def feed(self, data: bytes) -> None:
        self._path.write_bytes(data)
        before = _values(self._net)
        try:
            self._net.load(self._path)
        except PoseidonError:
            assert _same(before, _values(self._net)), "a refused file has changed the net"
            raise


def _weights_targets(folder: Path) -> list[Target]:
    targets = []
    for name, ending in (("weights", ".caffemodel"), ("weights_hdf5", ".caffemodel.h5")):
        weights = Weights(folder / f"weights{ending}")
        targets.append(Target(name, weights.feed, weights.seeds()))
    return targets


def _values(net: Net) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in net.parameters()]


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Bit for bit: damaged weights that were accepted before may well hold NaNs."""
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(one, other, strict=True))


# -- snapshots ------------------------------------------------------------------------------------------------------
class Snapshots:
    """A snapshot of which one file is replaced, restored into a solver with two histories and a net that carries."""

    def __init__(self, folder: Path, *, as_hdf5: bool) -> None:
        folder.mkdir(exist_ok=True)
        text = solver_texts()[0]
        settings = f'snapshot_prefix: "{folder}/s" snapshot_format: {"HDF5" if as_hdf5 else "BINARYPROTO"}'
        self._solver = Solver(parse_solver(f"{text} {settings}"))
        self._solver.step(2)
        files = self._solver.snapshot()
        self.state, self.sidecar, self.model = files.state, files.sidecar, files.model
        self.good = {path: path.read_bytes() for path in (files.state, files.sidecar, files.model)}

    def restore(self, **changed: bytes) -> None:
        """`changed`: state or sidecar. A changed state goes without a sidecar, whose checksum would give it away."""
        for path, data in self.good.items():
            path.write_bytes(data)
        if "state" in changed:
            self.sidecar.unlink()
            self.state.write_bytes(changed["state"])
        if "sidecar" in changed:
            self.sidecar.write_bytes(changed["sidecar"])
        self._solver.restore(self.state)

    def feed_state(self, data: bytes) -> None:
        before = self._solver.iter, _values(self._solver.net)
        try:
            self.restore(state=data)
        except PoseidonError:
            assert before[0] == self._solver.iter, "a refused state has changed the iteration"
            assert _same(before[1], _values(self._solver.net)), "a refused state has changed the weights"
            raise

    def feed_sidecar(self, data: bytes) -> None:
        """With the checksum put right where there is one: whoever wants to do harm can do as much."""
        try:
            body = json.loads(data)
            del body["checksum"]
            data = json.dumps({**body, "checksum": sidecar._checksum(body)}).encode()
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        self.restore(sidecar=data)


def _snapshot_targets(folder: Path) -> list[Target]:
    binary = Snapshots(folder / "snapshot", as_hdf5=False)
    hdf5 = Snapshots(folder / "snapshot_hdf5", as_hdf5=True)
    return [
        Target("state", binary.feed_state, [binary.good[binary.state]]),
        Target("state_hdf5", hdf5.feed_state, [hdf5.good[hdf5.state]]),
        Target("sidecar", binary.feed_sidecar, [binary.good[binary.sidecar]]),
    ]


# -- records --------------------------------------------------------------------------------------------------------
def _datums() -> list[bytes]:
    pixels = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
    found = [array_to_datum(pixels, 2), array_to_datum(pixels / 7, -1)]
    found += [caffe_pb2.Datum(encoded=True, label=1, data=data) for data in images()]
    return [datum.SerializeToString() for datum in found]


def _feed_datum(data: bytes) -> None:
    transformer = Transformer(TransformOptions(crop_size=3, random_crop=True, mirror=True, mean_values=(4.0,)))
    refusals = []
    for color in (None, True, False):
        try:
            record = parse_datum(data, color, "record")
            transformer.write(record, 5, np.empty(transformer.shape(record), np.float32))
        except PoseidonError as problem:
            refusals.append(problem)
    if refusals:
        raise refusals[0]


class Database:
    """Records read as training reads them: from an LMDB, by a Data layer."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "records"
        self._text = (
            f'layer {{ name: "data" type: "Data" top: "x" top: "t" data_param {{ source: "{self._path}" batch_size: 2 '
            "backend: LMDB prefetch: 1 } }"
        )

    def feed(self, data: bytes) -> None:
        with (
            lmdb.open(str(self._path), map_size=1 << 24, sync=False) as environment,
            environment.begin(write=True) as records,
        ):
            records.put(b"0", data)
        with small_machine():
            net = Net.from_text(self._text, seed=1)
            try:
                net()
            finally:
                net.layers["data"].close()


# -- means ----------------------------------------------------------------------------------------------------------
def _means() -> list[bytes]:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    old = array_to_blob(values[None])
    old.ClearField("shape")
    old.num, old.channels, old.height, old.width = 1, 2, 3, 4
    blobs = [array_to_blob(values), array_to_blob(values[None]), array_to_blob(values.astype(np.float64)), old]
    return [blob.SerializeToString() for blob in blobs]


def _feed_mean(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    mean = read_mean(str(path))
    assert mean.ndim == 3


# -- models of others -----------------------------------------------------------------------------------------------
_CONVERTED = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 6 dim: 6 } } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 4 kernel_size: 3 group: 2 } }
layer { name: "b" type: "BatchNorm" bottom: "c" top: "b" }
layer { name: "s" type: "Slice" bottom: "b" top: "s1" top: "s2" }
layer { name: "e" type: "Eltwise" bottom: "s1" bottom: "s2" top: "e" }
layer { name: "p" type: "Pooling" bottom: "e" top: "p" pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
layer { name: "f" type: "Flatten" bottom: "p" top: "f" }
layer { name: "i" type: "InnerProduct" bottom: "f" top: "i" inner_product_param { num_output: 3 } }
layer { name: "y" type: "Softmax" bottom: "i" top: "y" }
"""


def _onnx_models() -> list[bytes]:
    net = Net.from_text(_CONVERTED, seed=1)
    return [model_of(net, Extents(net.graph), opset).SerializeToString() for opset in (13, 18)]


def _feed_onnx(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    with small_machine():
        net, outputs, _ = read_graph(str(path), {})
        built = net.built()
    assert set(outputs) <= set(built.blob_shapes)
