"""Nets as drawings: layers and blobs in Graphviz's language, rendered by `dot` where that is installed.

    draw_net_to_file(net, "net.png")        any format `dot -T` knows, by the ending of the name; .dot or .raw: the text

The graph and the drawing are poseidon's (poseidon/tools/picture.py, graphviz.py).
"""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import dataclass

from poseidon.errors import UsageError
from poseidon.spec import caffe_pb2, filter_net, net_source
from poseidon.tools.graphviz import dot_text, render
from poseidon.tools.picture import PictureOptions, edge_label, layer_words, picture_of


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph in Graphviz's language, with the methods of pydot's graphs that people use."""

    text: str

    def to_string(self) -> str:
        return self.text

    def create(self, format: str = "png") -> bytes:
        """The drawing in one of Graphviz's formats, or as text ("dot", "raw")."""
        return render(self.text, format)

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
    source = net_source(caffe_net)
    if phase is not None:
        source = filter_net(source, phase)
    picture = picture_of(source, PictureOptions(edge_labels=label_edges, multipliers=display_lrm))
    return Drawing(dot_text(picture, rankdir))


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
    separator = " " if rankdir in ("TB", "BT") else r"\n"
    return separator.join(layer_words(layer, multipliers=display_lrm))


def get_edge_label(layer: caffe_pb2.LayerParameter) -> str:
    """What a layer's size is known by: its batch, or its number of outputs."""
    return edge_label(layer)
