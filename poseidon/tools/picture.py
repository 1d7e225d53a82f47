"""Picture: a net as a graph of layers and blobs, before anybody has decided how to draw it.

    picture = picture_of(source)                           what Caffe's draw_net.py shows
    picture = picture_of(source, notes={"conv1": [...]})   and further lines for some layers or blobs

A layer is a box: its name and type, for windows kernel, stride and pad, on request learning-rate multipliers. A blob is
another node; an edge to it from the layer that makes it says the batch (Data) or the number of outputs. Colours are
those of Caffe's drawings: red convolutions, orange pooling, violet inner products, green layers in place, blue others.

A layer is known by its place among the layers (two may have one name), a blob by its name. `Picture` holds nothing of
Graphviz: the report draws from it as well, with shapes, parameters and schemes as notes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from poseidon.spec import NetSource, caffe_pb2


class Kind(Enum):
    """What a node is; its value is the colour it is filled with. A blob that nobody reads is not filled."""

    LAYER = "#6495ED"
    WINDOWED = "#FF5050"
    POOLING = "#FF9900"
    INNER_PRODUCT = "#CC33FF"
    IN_PLACE = "#90EE90"
    BLOB = "#E0E0E0"
    OUTPUT = ""


_KIND_OF = {
    "Convolution": Kind.WINDOWED,
    "Deconvolution": Kind.WINDOWED,
    "Pooling": Kind.POOLING,
    "InnerProduct": Kind.INNER_PRODUCT,
}
_WITH_MULTIPLIERS = ("Convolution", "Deconvolution", "InnerProduct")


@dataclass(frozen=True, slots=True)
class PictureNode:
    """`key` is unique in the picture; `words` is its text, piece by piece."""

    key: str
    kind: Kind
    words: tuple[str, ...]

    @property
    def is_layer(self) -> bool:
        return self.kind not in (Kind.BLOB, Kind.OUTPUT)


@dataclass(frozen=True, slots=True)
class PictureEdge:
    """From one node's key to another's."""

    start: str
    end: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    nodes: tuple[PictureNode, ...]
    edges: tuple[PictureEdge, ...]


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """What is shown. `notes`: further words by the name of a layer, `blob_notes`: by that of a blob."""

    edge_labels: bool = True
    multipliers: bool = False
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    blob_notes: Mapping[str, Sequence[str]] = field(default_factory=dict)


def picture_of(source: NetSource, options: PictureOptions | None = None) -> Picture:
    """The graph of a net's layers as they are: filter the net first to see one phase of it."""
    options = options or PictureOptions()
    nodes: dict[str, PictureNode] = {}
    edges: list[PictureEdge] = []

    def see_blob(name: str, kind: Kind) -> str:
        key = f"blob {name}"
        nodes[key] = PictureNode(key, kind, (name, *options.blob_notes.get(name, ())))
        return key

    for index, layer in enumerate(source.net.layer):
        key = f"layer {index}"
        words = (*layer_words(layer, multipliers=options.multipliers), *options.notes.get(layer.name, ()))
        nodes[key] = PictureNode(key, _kind(layer), words)
        edges += [PictureEdge(see_blob(name, Kind.BLOB), key) for name in layer.bottom]
        label = edge_label(layer) if options.edge_labels else ""
        edges += [PictureEdge(key, see_blob(name, Kind.OUTPUT), label) for name in layer.top]
    return Picture(source.net.name or "Net", tuple(nodes.values()), tuple(edges))


def layer_words(layer: caffe_pb2.LayerParameter, *, multipliers: bool = False) -> list[str]:
    """The text of a layer, piece by piece."""
    words = [layer.name, f"({layer.type})"]
    if layer.type in ("Convolution", "Deconvolution"):
        words += _window_words(layer.convolution_param, {"kernel_size": 1, "stride": 1, "pad": 0})
    elif layer.type == "Pooling":
        pooling = layer.pooling_param
        words[1] = f"({layer.type} {caffe_pb2.PoolingParameter.PoolMethod.Name(pooling.pool)})"
        words += (
            ["global"] if pooling.global_pooling else _window_words(pooling, {"kernel_size": 0, "stride": 1, "pad": 0})
        )
    if multipliers and layer.type in _WITH_MULTIPLIERS:
        rates = [param.lr_mult for param in layer.param[:2]] + [1.0] * (2 - len(layer.param))
        if any(rates):
            words.append(f"lr mult: {rates[0]:.1f}, {rates[1]:.1f}")
    return words


def edge_label(layer: caffe_pb2.LayerParameter) -> str:
    """How much comes out of a layer, where that is one of its options."""
    if layer.type == "Data":
        return f"Batch {layer.data_param.batch_size}"
    if layer.type in ("Convolution", "Deconvolution"):
        return str(layer.convolution_param.num_output)
    return str(layer.inner_product_param.num_output) if layer.type == "InnerProduct" else ""


def _kind(layer: caffe_pb2.LayerParameter) -> Kind:
    if len(layer.bottom) == 1 and list(layer.bottom) == list(layer.top):
        return Kind.IN_PLACE
    return _KIND_OF.get(layer.type, Kind.LAYER)


def _window_words(
    options: caffe_pb2.ConvolutionParameter | caffe_pb2.PoolingParameter, defaults: Mapping[str, int]
) -> list[str]:
    """`kernel size: 5`, or `3x5` where the axes differ."""
    return [
        f"{name.replace('_', ' ')}: {'x'.join(map(str, _extents(options, name, default)))}"
        for name, default in defaults.items()
    ]


def _extents(
    options: caffe_pb2.ConvolutionParameter | caffe_pb2.PoolingParameter, name: str, default: int
) -> list[int]:
    """One for all axes, or one for each."""
    stem = name.removesuffix("_size")
    by_axis = [f"{stem}_h", f"{stem}_w"]
    if any(options.HasField(axis) for axis in by_axis):  # type: ignore[arg-type]
        return [getattr(options, axis) for axis in by_axis]
    given = getattr(options, name)
    if isinstance(given, int):
        return [given]
    return list(given) or [default]
