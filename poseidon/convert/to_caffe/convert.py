"""Import: a PyTorch module or an ONNX graph as prototxt and caffemodel, and the check that both compute the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from poseidon.convert.comparison import compare, run_net
from poseidon.convert.inputs import random_inputs
from poseidon.convert.report import ConversionReport, Trial
from poseidon.convert.to_caffe.builder import NetBuilder
from poseidon.errors import ConvertError, NetError
from poseidon.net import Net
from poseidon.net.layer import Shape
from poseidon.spec import write_text

# Runs the original: inputs by name, outputs in its own order.
Original = Callable[[Mapping[str, Tensor]], list[np.ndarray]]


def import_model(
    model: str | Path, weights: str | Path | None, out: Path, shapes: Mapping[str, Shape]
) -> ConversionReport:
    """`model`: MODULE:FACTORY, FILE.py:FACTORY or a path that ends in .onnx."""
    model, weights = str(model), None if weights is None else str(weights)
    if model.endswith(".onnx"):
        from poseidon.convert.to_caffe.from_onnx import read_graph

        net, outputs, original = read_graph(model, shapes)
    else:
        net, outputs, original = _from_torch(model, weights, shapes)
    prototxt = out if out.suffix == ".prototxt" else out.with_name(f"{out.name}.prototxt")
    prototxt.parent.mkdir(parents=True, exist_ok=True)
    caffe_net = net.built()
    write_text(net.message, prototxt)
    caffemodel = prototxt.with_suffix(".caffemodel")
    caffe_net.save(caffemodel)
    trials = _trials(Net(prototxt, caffemodel), outputs, original)
    return ConversionReport((prototxt, caffemodel), tuple(_notes(caffe_net, outputs)), tuple(trials))


def _from_torch(model: str, weights: str | None, shapes: Mapping[str, Shape]) -> tuple[NetBuilder, list[str], Original]:
    from poseidon.convert.to_caffe.from_torch import DoesNotRun, input_names, load_module, record

    module = load_module(model, weights)
    wanted = input_names(module, shapes)
    dtype = torch.float32
    try:
        net, outputs = record(module, wanted)
    except DoesNotRun as problem:  # indices, perhaps: an embedding takes nothing else
        dtype = torch.int64
        try:
            net, outputs = record(module, wanted, dtype)
        except DoesNotRun:
            raise problem from None

    def original(inputs: Mapping[str, Tensor]) -> list[np.ndarray]:
        with torch.no_grad():
            made = module(*[value.to(dtype) for value in inputs.values()])
        made = list(made.values()) if isinstance(made, dict) else made
        return [value.numpy() for value in (made if isinstance(made, (tuple, list)) else (made,))]

    return net, outputs, original


def _trials(net: Net, outputs: list[str], original: Original) -> list[Trial]:
    """The net as it was written, read again; with another batch where both sides take one."""
    trials = []
    shapes = {name: net.blob_shapes[name] for name in net.inputs}
    larger = {name: (shape[0] + 1, *shape[1:]) for name, shape in shapes.items()}
    for what, sizes in (("random inputs", shapes), ("random inputs, a larger batch", larger)):
        inputs = random_inputs(net, sizes)
        try:
            ours = run_net(net, inputs, outputs)
        except NetError:  # a batch written into the net, which the first trial does not mind
            continue
        try:
            made = original(inputs)
        except Exception as problem:  # whatever runs the original says in its own words that it keeps its batch size
            if sizes is shapes:
                raise ConvertError(f"the original does not run: {problem}") from problem
            continue
        theirs = dict(zip(outputs, made, strict=True))
        trials.append(Trial(what, tuple(compare(ours, theirs))))
    return trials


def _notes(net: Net, outputs: list[str]) -> list[str]:
    notes = []
    forks = sorted({node.layer.type_name for node in net.graph.nodes} & {"Permute"})
    if forks:
        notes.append(f"layers that BVLC Caffe itself does not have: {', '.join(forks)}")
    extra = [name for name in net.outputs if name not in outputs]
    if extra:
        notes.append(f"blobs that nobody reads: {', '.join(extra)}")
    return notes
