"""Export: a Caffe net with its weights into a file that others read, and the check that both compute the same.

onnx          one .onnx file                       run by onnxruntime
torch         model.py and model.safetensors       run by a Python that has no Poseidon
torchscript   one .pt file (torch.jit.trace)       run by torch.jit; PyTorch itself has deprecated it for torch.export
safetensors   weights only: "layer.index"          read back
hdf5          weights only: Caffe's own layout     read back
"""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from poseidon.convert.comparison import Difference, compare, run_net
from poseidon.convert.deploy import Deployment, deployed
from poseidon.convert.extents import Extents
from poseidon.convert.fold import fold
from poseidon.convert.inputs import random_inputs
from poseidon.convert.report import ConversionReport, Trial
from poseidon.convert.runtimes import Results, Trials, run_onnx, run_torch, run_torchscript
from poseidon.convert.steps import outputs_of
from poseidon.errors import SpecError, UsageError
from poseidon.net import Net
from poseidon.net.weights_hdf5 import write_hdf5
from poseidon.spec import read_net
from poseidon.spec.files import write_atomically

TARGETS = ("onnx", "torch", "torchscript", "safetensors", "hdf5")
WEIGHTS_ONLY = ("safetensors", "hdf5")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to write, and how to check it.

    opset         of ONNX (None: the default)
    fold          put BatchNorm and Scale into the weights before them
    fixed_batch   keep the batch size of the prototxt
    inputs        arrays to check with, by blob name, beside random ones
    check         run both sides
    """

    target: str
    opset: int | None = None
    fold: bool = False
    fixed_batch: bool = False
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    check: bool = True
    seed: int = 0


def net_to_export(model: str | Path, weights: str | Path | None, wanted: Deployment) -> tuple[Net, list[str]]:
    """The deployed net with its weights, and what the user should know about them."""
    net = Net(deployed(read_net(model), wanted), phase="TEST", seed=0)
    if weights is None:
        return net, ["no weights given: the net has random ones"] if net.learnable else []
    report = net.load(weights)
    notes = []
    if report.untouched:
        notes.append(f"{weights} has no weights of {', '.join(report.untouched)}: random ones are used")
    return net, notes


def export_net(net: Net, out: Path, options: ExportOptions) -> ConversionReport:
    """Writes the net (see `net_to_export`) and compares."""
    notes: list[str] = []
    reference = net
    if options.fold:
        folded = fold(net)
        net = folded.net
        notes.append(f"folded into the weights before them: {', '.join(folded.layers) or 'nothing'}")
    if options.target in WEIGHTS_ONLY:
        path = _WEIGHTS[options.target](net, out)
        return ConversionReport((path,), tuple(notes), (Trial("read back", _read_back(net, path, options.target)),))
    extents = Extents(net.graph, fixed=options.fixed_batch)
    if extents.reason:
        notes.append(f"the batch size is fixed: {extents.reason}")
    files, more = _WRITERS[options.target](net, extents, out, options)
    notes += more
    trials = _trials(reference, extents, files[0], options) if options.check else ()
    return ConversionReport(tuple(files), tuple(notes), tuple(trials))


# -- whole models ---------------------------------------------------------------------------------------------------
Written = tuple[list[Path], list[str]]


def _write_onnx(net: Net, extents: Extents, out: Path, options: ExportOptions) -> Written:
    from poseidon.convert.to_onnx.model import DEFAULT_OPSET, model_of, require_onnx, write_onnx

    require_onnx()
    path = _file(out, ".onnx")
    write_onnx(model_of(net, extents, options.opset or DEFAULT_OPSET), path)
    return [path], _recurrent_notes(net)


def _write_torch(net: Net, extents: Extents, out: Path, options: ExportOptions) -> Written:
    from poseidon.convert.to_torch.model import model_of

    model = model_of(net, extents)
    path = out if out.suffix == ".py" else out / "model.py"
    _make_folder(path.parent)
    write_atomically(model.text.encode(), path)
    weights = path.with_suffix(".safetensors")
    _save_safetensors(model.tensors, weights, {"format": "pt"})
    return [path, weights], _recurrent_notes(net)


def _write_torchscript(net: Net, extents: Extents, out: Path, options: ExportOptions) -> Written:
    path = _file(out, ".pt")
    sizes = dict.fromkeys(("batch", "steps"), 2) if extents.is_dynamic else {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Deprecated, and said so in the notes; the rest are about shapes that are meant to be fixed.
        warnings.simplefilter("ignore")
        (source, _), notes = _write_torch(net, extents, Path(folder), options)
        module = _loaded(source)
        shapes = extents.resized(**{name: size for name, size in sizes.items() if name != "steps"})
        example = tuple(random_inputs(net, shapes, options.seed).values())
        with torch.no_grad():
            traced = torch.jit.trace(module, example, check_trace=False)
        traced.save(str(path))
    notes.append("PyTorch has deprecated TorchScript in favour of torch.export: `--to torch` has a future")
    if any(node.layer.type_name in ("LSTM", "RNN") for node in net.graph.nodes):
        notes.append("the number of steps is fixed: a trace has no loops")
    return [path], notes


def _loaded(source: Path) -> torch.nn.Module:
    """The model just written, as a module of its own; TorchScript keeps the name."""
    spec = importlib.util.spec_from_file_location("exported_model", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: torch.nn.Module = module.load()
    return model


def _recurrent_notes(net: Net) -> list[str]:
    carried = [
        node.layer.name
        for node in net.graph.nodes
        if node.layer.type_name in ("LSTM", "RNN") and not node.layer.spec.recurrent_param.expose_hidden
    ]
    if not carried:
        return []
    return [f"every run begins with a state of zero ({', '.join(carried)}); set expose_hidden to carry states over"]


_WRITERS: dict[str, Callable[[Net, Extents, Path, ExportOptions], Written]] = {
    "onnx": _write_onnx,
    "torch": _write_torch,
    "torchscript": _write_torchscript,
}
_RUNNERS: dict[str, Callable[[Path, Trials, Mapping[str, str]], Results]] = {
    "onnx": run_onnx,
    "torch": run_torch,
    "torchscript": run_torchscript,
}


def _trials(net: Net, extents: Extents, path: Path, options: ExportOptions) -> list[Trial]:
    """Random inputs, of two batch sizes where the batch may change, and those that were given."""
    steps = {} if options.target == "torchscript" else {"steps": 3}
    plans = {"random inputs, batch 2": {"batch": 2}, "random inputs, batch 3": {"batch": 3, **steps}}
    if not extents.is_dynamic:
        plans = {"random inputs": {}}
    trials = {
        what: random_inputs(net, extents.resized(**sizes), options.seed + number)
        for number, (what, sizes) in enumerate(plans.items())
    }
    if options.inputs:
        for name in options.inputs:
            if name not in net.inputs:
                raise UsageError(f"--input {name}: the net takes {', '.join(net.inputs)}")
        shapes = {name: tuple(value.shape) for name, value in options.inputs.items()}
        made = random_inputs(net, {**extents.resized(), **shapes}, options.seed)
        trials["given inputs"] = {**made, **options.inputs}
    outputs = outputs_of(net)
    ours = [run_net(net, inputs, list(outputs)) for inputs in trials.values()]
    theirs = _RUNNERS[options.target](path, list(trials.values()), outputs)
    return [
        Trial(what, tuple(compare(*both))) for what, both in zip(trials, zip(ours, theirs, strict=True), strict=True)
    ]


# -- weights alone --------------------------------------------------------------------------------------------------
def _write_hdf5(net: Net, out: Path) -> Path:
    path = _file(out, ".h5")
    write_hdf5(net, path, with_diff=False)
    return path


def _write_safetensors(net: Net, out: Path) -> Path:
    path = _file(out, ".safetensors")
    tensors = {f"{entry.layer}.{entry.index}": entry.value.detach().float().cpu().numpy() for entry in net.learnable}
    _save_safetensors(tensors, path, {"format": "caffe", "net": net.name})
    return path


_WEIGHTS: dict[str, Callable[[Net, Path], Path]] = {"hdf5": _write_hdf5, "safetensors": _write_safetensors}


def _save_safetensors(tensors: Mapping[str, np.ndarray], path: Path, metadata: dict[str, str]) -> None:
    from safetensors.numpy import save

    data = save({name: np.array(value, order="C") for name, value in tensors.items()}, metadata)
    write_atomically(data, path)


def _read_back(net: Net, path: Path, target: str) -> tuple[Difference, ...]:
    """Every blob of the file against the net's."""
    ours = {f"{entry.layer}.{entry.index}": entry.value.detach().numpy() for entry in net.learnable}
    if target == "safetensors":
        from safetensors.numpy import load_file

        return tuple(compare(ours, load_file(path)))
    copy = Net(net.source, phase="TEST", seed=1)
    copy.load(path)
    theirs = {f"{entry.layer}.{entry.index}": entry.value.detach().numpy() for entry in copy.learnable}
    return tuple(compare(ours, theirs))


# -- files ----------------------------------------------------------------------------------------------------------
def _file(out: Path, suffix: str) -> Path:
    """The file to write: `out`, or model.suffix inside it if it is a folder."""
    path = out / f"model{suffix}" if out.is_dir() else out
    _make_folder(path.parent)
    return path


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise SpecError(f"{folder}: cannot be made: {problem}") from None
