"""Flow: a net as layers that feed layers, with blobs on the edges; what is easiest to look at.

A layer in place (`top == bottom`) is folded into the layer that made the blob: it is one more line of its card. An edge
leads from the card that has last written a blob to each layer that reads it then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from poseidon.spec import NetSource, caffe_pb2


@dataclass(slots=True)
class Card:
    """One layer and those folded into it, in order; `tops`: the blobs it leaves behind."""

    index: int
    layers: list[caffe_pb2.LayerParameter]
    tops: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FlowEdge:
    """From one card to a later one, by their numbers."""

    start: int
    end: int
    blob: str


@dataclass(frozen=True, slots=True)
class Flow:
    cards: tuple[Card, ...]
    edges: tuple[FlowEdge, ...]


def flow_of(source: NetSource) -> Flow:
    """The flow of a net's layers as they are: filter the net first to see one phase of it."""
    cards: list[Card] = []
    edges: list[FlowEdge] = []
    writers: dict[str, int] = {}
    for blob in source.net.input:  # the oldest way to declare inputs has no layer
        writers[blob] = len(cards)
        cards.append(Card(len(cards), [caffe_pb2.LayerParameter(name=blob, type="Input")], [blob]))
    for layer in source.net.layer:
        if _is_in_place(layer) and layer.bottom[0] in writers:
            cards[writers[layer.bottom[0]]].layers.append(layer)
            continue
        card = Card(len(cards), [layer], list(dict.fromkeys(layer.top)))
        cards.append(card)
        edges += [FlowEdge(writers[blob], card.index, blob) for blob in layer.bottom if blob in writers]
        writers |= dict.fromkeys(layer.top, card.index)
    return Flow(tuple(cards), tuple(dict.fromkeys(edges)))


def _is_in_place(layer: caffe_pb2.LayerParameter) -> bool:
    return len(layer.bottom) == 1 and list(layer.bottom) == list(layer.top)
