"""The ONNX model of a net: float32 inputs and outputs under the blobs' names, nodes under the layers'.

A blob that layers overwrite in place keeps its name for the last value, as in Caffe's `net.blobs`; earlier ones are
called after the layer that made them. `model_of` only builds; `write_onnx` checks the model with onnx's own checker.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poseidon.convert.extents import Dims, Extents
from poseidon.convert.steps import outputs_of, steps_of
from poseidon.convert.table import emitters
from poseidon.convert.to_onnx.arithmetic import batch_norm
from poseidon.convert.to_onnx.builder import LEAST_OPSET, Emission, GraphBuilder
from poseidon.errors import UsageError
from poseidon.net import Net
from poseidon.spec.files import write_atomically
from poseidon.spec.limits import MAX_BINARY_BYTES

DEFAULT_OPSET = 17


def require_onnx() -> None:
    """onnx and onnxruntime are an extra."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as problem:
        raise UsageError(
            f"ONNX needs the packages onnx and onnxruntime, {problem.name} is not installed: "
            "pip install 'poseidon-dl[onnx]'"
        ) from None


def check_opset(opset: int) -> None:
    from onnx import defs

    newest = defs.onnx_opset_version()
    if not LEAST_OPSET <= opset <= newest:
        raise UsageError(f"--opset {opset}: expected {LEAST_OPSET} to {newest}, what the installed onnx knows")


def model_of(net: Net, extents: Extents, opset: int = DEFAULT_OPSET) -> Any:
    """The net as an onnx.ModelProto."""
    from onnx import TensorProto, helper

    check_opset(opset)
    graph = GraphBuilder(opset)
    values = {name: name for name in net.inputs}
    layer_of: dict[str, str] = {}
    for step in steps_of(net, extents):
        layer = step.node.layer
        if layer.type_name == "Input":
            continue
        emission = Emission(graph, layer, [values[name] for name in step.node.bottoms], step)
        if step.scale is None:
            made = emitters(layer).onnx(emission)
        else:
            made = batch_norm(emission, *step.scale_values())
        for top, value in zip(step.node.tops, [made] if isinstance(made, str) else made, strict=True):
            _keep_older_name(graph, top, values, layer_of)
            values[top] = value
            layer_of[top] = layer.name
            graph.name_node(value, layer.name)
    outputs = outputs_of(net)
    _name_blobs(graph, net, values, outputs)

    def infos(names: Mapping[str, str]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(_public(extents.dims[blob])))
            for blob, name in names.items()
        ]

    inputs = {name: name for name in net.inputs}
    proto = graph.structure(net.name or "net", infos(inputs), infos(outputs))
    _make_node_names_unique(proto)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(proto, opset_imports=opsets, producer_name="poseidon")
    model.ir_version = helper.find_min_ir_version_for(opsets)
    graph.add_constants(model.graph)
    return model


def write_onnx(model: Any, path: Path) -> None:
    """Checks the model and writes it in one piece."""
    import onnx

    if model.ByteSize() > MAX_BINARY_BYTES:
        raise UsageError(
            f"{path}: the model has {model.ByteSize()} bytes, expected at most {MAX_BINARY_BYTES}, protobuf's limit; "
            "export --to torch instead"
        )
    data = model.SerializeToString()
    onnx.checker.check_model(data, full_check=True)  # given the bytes, it need not make them again
    write_atomically(data, path)


def _public(dims: Dims) -> Dims:
    """Names of extents as runtimes take them."""
    return tuple(dim.replace("·", "_x_").replace(" ", "_") if isinstance(dim, str) else dim for dim in dims)


def _keep_older_name(graph: GraphBuilder, top: str, values: dict[str, str], layer_of: dict[str, str]) -> None:
    """The value a blob had before it is overwritten is named after its layer."""
    if top in values and top in layer_of:
        graph.rename(values[top], f"{top}/{layer_of[top]}")


def _name_blobs(graph: GraphBuilder, net: Net, values: dict[str, str], outputs: Mapping[str, str]) -> None:
    taken = set(net.inputs) | set(graph.names.values())
    # Outputs first: a blob and its copies under other names (Split) are one value.
    for blob, name in outputs.items():
        if not graph.rename(values[blob], name):
            (copy,) = graph.add("Identity", [values[blob]], 1, blob, {})
            graph.rename(copy, name)
        taken.add(name)
    for blob in [*(name for name in values if "_split_" not in name), *values]:
        if blob not in taken and graph.rename(values[blob], blob):
            taken.add(blob)


def _make_node_names_unique(graph: Any) -> None:
    seen: dict[str, int] = {}
    for node in graph.node:
        count = seen.get(node.name, 0)
        seen[node.name] = count + 1
        if count:
            node.name = f"{node.name}#{count + 1}"
