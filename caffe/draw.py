"""Nets as drawings: layers and blobs in Graphviz's language, rendered by `dot` where that is installed.

draw_net_to_file(net, "net.png")        any format `dot -T` knows, by the ending of the name; .dot or .raw: the text
"""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from poseidon.errors import UsageError
from poseidon.spec import caffe_pb2

_RANKDIRS = ("LR", "RL", "TB", "BT")
_TEXT_FORMATS = ("dot", "gv", "raw")
_LAYER = {"shape": "record", "fillcolor": "#6495ED", "style": "filled"}
_IN_PLACE = {"shape": "record", "fillcolor": "#90EE90", "style": "filled"}
_BLOB = {"shape": "octagon", "fillcolor": "#E0E0E0", "style": "filled"}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph in Graphviz's language."""

    text: str

    def to_string(self) -> str:
        return self.text

    def create(self, format: str = "png") -> bytes:
        """The drawing in one of Graphviz's formats, or as text ("dot", "raw")."""
        if format in _TEXT_FORMATS:
            return self.text.encode()
        program = shutil.which("dot")
        if program is None:
            raise UsageError(
                f"drawing a net as {format!r} needs Graphviz's program `dot`, which is not on the PATH; install "
                "Graphviz (apt install graphviz), or write .dot and draw that elsewhere"
            )
        run = subprocess.run([program, f"-T{format}"], input=self.text.encode(), capture_output=True, check=False)
        if run.returncode:
            raise UsageError(f"dot -T{format} failed: {run.stderr.decode(errors='replace').strip()}")
        return run.stdout

    def write(self, path: str | os.PathLike[str], format: str | None = None) -> None:
        name = os.fspath(path)
        image = self.create(format or name.rpartition(".")[2])
        with open(name, "wb") as file:
            file.write(image)


def get_pydot_graph(
    caffe_net: caffe_pb2.NetParameter,
    rankdir: str,
    label_edges: bool = True,
    phase: int | None = None,
    display_lrm: bool = False,
) -> Drawing:
    """The graph of a net: its layers (those of one phase, if one is given) and the blobs between them."""
    if rankdir not in _RANKDIRS:
        raise UsageError(f"the direction of a drawing is one of {', '.join(_RANKDIRS)}, got {rankdir!r}")
    nodes: dict[str, Mapping[str, str]] = {}
    edges: list[str] = []
    shown = [layer for layer in caffe_net.layer if phase is None or _is_in(layer, phase)]
    for number, layer in enumerate(shown):
        # Two layers may have one name, and a layer a blob's.
        key = f"layer {number} {layer.name}"
        in_place = len(layer.bottom) == len(layer.top) == 1 and layer.bottom[0] == layer.top[0]
        nodes[key] = {"label": get_layer_label(layer, rankdir, display_lrm), **(_IN_PLACE if in_place else _LAYER)}
        for name in layer.bottom:
            nodes.setdefault(f"blob {name}", {"label": _escaped(name), **_BLOB})
            edges.append(_edge(f"blob {name}", key, ""))
        for name in layer.top:
            nodes.setdefault(f"blob {name}", {"label": _escaped(name), **_BLOB})
            edges.append(_edge(key, f"blob {name}", get_edge_label(layer) if label_edges else ""))
    lines = [f"digraph {_quoted(caffe_net.name or 'Net')} {{", f"rankdir={rankdir};"]
    lines += [f"{_quoted(key)} [{_attributes(style)}];" for key, style in nodes.items()]
    return Drawing("\n".join([*lines, *edges, "}"]) + "\n")


def draw_net(
    caffe_net: caffe_pb2.NetParameter,
    rankdir: str,
    ext: str = "png",
    phase: int | None = None,
    display_lrm: bool = False,
) -> bytes:
    """The drawing in a format of Graphviz's. Without Graphviz, its text, and a warning that says so."""
    drawing = get_pydot_graph(caffe_net, rankdir, phase=phase, display_lrm=display_lrm)
    try:
        return drawing.create(ext)
    except UsageError as problem:
        if shutil.which("dot") is not None:
            raise
        warnings.warn(f"{problem}; returning the text of the graph", stacklevel=2)
        return drawing.create("dot")


def draw_net_to_file(
    caffe_net: caffe_pb2.NetParameter,
    filename: str | os.PathLike[str],
    rankdir: str = "LR",
    phase: int | None = None,
    display_lrm: bool = False,
) -> None:
    """Writes the drawing in the format the file's name ends in; an error if there is no Graphviz for it."""
    get_pydot_graph(caffe_net, rankdir, phase=phase, display_lrm=display_lrm).write(filename)


def get_layer_label(layer: caffe_pb2.LayerParameter, rankdir: str, display_lrm: bool = False) -> str:
    """Name and type; for windows their extents; on request the learning-rate multipliers."""
    # Lines where the drawing runs down, one long line where it runs across.
    separator = r"\n" if rankdir in ("TB", "BT") else " "
    parts = [f"{_escaped(layer.name)}{separator}({_escaped(layer.type)})"]
    if layer.type in ("Convolution", "Deconvolution"):
        options = layer.convolution_param
        defaults = {"kernel_size": 1, "stride": 1, "pad": 0}
        parts += [f"{_word(name)}: {_extents(options, name, default)}" for name, default in defaults.items()]
    elif layer.type == "Pooling":
        pooling = layer.pooling_param
        parts.append(f"{caffe_pb2.PoolingParameter.PoolMethod.Name(pooling.pool)} pooling")
        if pooling.global_pooling:
            parts.append("global")
        else:
            parts += [
                f"{_word(n)}: {_extents(pooling, n, getattr(pooling, n))}" for n in ("kernel_size", "stride", "pad")
            ]
    if display_lrm and layer.param:
        parts.append("lr mult: " + ", ".join(f"{param.lr_mult:g}" for param in layer.param))
    return separator.join(parts)


def get_edge_label(layer: caffe_pb2.LayerParameter) -> str:
    """What a layer's size is known by: its batch, or its number of outputs."""
    if layer.type == "Data":
        return f"Batch {layer.data_param.batch_size}"
    if layer.type in ("Convolution", "Deconvolution"):
        return str(layer.convolution_param.num_output)
    return str(layer.inner_product_param.num_output) if layer.type == "InnerProduct" else ""


def _is_in(layer: caffe_pb2.LayerParameter, phase: int) -> bool:
    """Whether a layer is there in a phase, as far as its rules speak of phases."""
    included = [rule.phase for rule in layer.include if rule.HasField("phase")]
    excluded = [rule.phase for rule in layer.exclude if rule.HasField("phase")]
    return phase in included if included else phase not in excluded


def _extents(options: object, name: str, default: int) -> str:
    """`5`, or `3x5` where the axes differ."""
    legacy = {"kernel_size": "kernel", "stride": "stride", "pad": "pad"}[name]
    height, width = getattr(options, f"{legacy}_h"), getattr(options, f"{legacy}_w")
    if height or width:
        return f"{height}x{width}"
    given = getattr(options, name)
    values = list(given) if hasattr(given, "append") else [given]
    return "x".join(str(value) for value in values) or str(default)


def _word(name: str) -> str:
    return name.replace("_", " ")


def _edge(source: str, target: str, label: str) -> str:
    return f"{_quoted(source)} -> {_quoted(target)}" + (f" [label={_quoted(label)}];" if label else ";")


def _attributes(style: Mapping[str, str]) -> str:
    return ", ".join(f'{name}="{value}"' for name, value in style.items())


def _escaped(text: str) -> str:
    """Text for a label, whose shape gives some characters a meaning."""
    return "".join(f"\\{c}" if c in '\\"{}|<>' else c for c in text)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
