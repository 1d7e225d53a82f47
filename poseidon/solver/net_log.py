"""What Caffe logs while it builds a net: rules that leave layers out, the net's text, layers, shapes, memory, outputs.

Caffe writes these lines as it goes; here the middle part comes when the net is built. Lines of single layer types
(which HDF5 files, which database) are not among them.
"""

from __future__ import annotations

from collections.abc import Iterator

from poseidon.log_line import LogLine, number
from poseidon.net.graph import Node
from poseidon.net.layer import Shape, count_of
from poseidon.net.net import Net
from poseidon.spec import NetSource, caffe_pb2, filter_by_state, format_message, rule_holds


def filter_lines(source: NetSource, state: caffe_pb2.NetState) -> Iterator[LogLine]:
    """One line for each rule that does not hold, as far as a layer's rules are looked at."""
    for layer in source.net.layer:
        for rule in (*layer.include, *layer.exclude):
            if rule_holds(rule, state):
                break
            yield LogLine(*_difference(rule, state, layer.name))


def _difference(rule: caffe_pb2.NetStateRule, state: caffe_pb2.NetState, layer: str) -> tuple[str, str]:
    tail = f"specified by a rule in layer {layer}"
    if rule.HasField("phase") and rule.phase != state.phase:
        return "net.cpp:296", f"The NetState phase ({state.phase}) differed from the phase ({rule.phase}) {tail}"
    for name, place in (("min_level", "net.cpp:306"), ("max_level", "net.cpp:316")):
        bound = getattr(rule, name)
        is_beyond = state.level < bound if name == "min_level" else state.level > bound
        if rule.HasField(name) and is_beyond:
            # Caffe says "above" in both cases.
            return place, f"The NetState level ({state.level}) is above the {name} ({bound}) {tail}"
    for stage in rule.stage:
        if stage not in state.stage:
            return "net.cpp:332", f"The NetState did not contain stage '{stage}' {tail}"
    stage = next(stage for stage in rule.not_stage if stage in state.stage)
    return "net.cpp:347", f"The NetState contained a not_stage '{stage}' {tail}"


def planned_lines(source: NetSource, state: caffe_pb2.NetState) -> list[LogLine]:
    """The net's text, without the layers its state leaves out."""
    text = format_message(filter_by_state(source, state).net).rstrip("\n")
    return [LogLine("net.cpp:53", f"Initializing net from parameters: \n{text}")]


def built_lines(net: Net) -> Iterator[LogLine]:
    """Every layer with its blobs and memory; which need backward; the outputs."""
    num_elems = 0
    for node in net.graph.nodes:
        name = node.layer.name
        yield LogLine("layer_factory.hpp:77", f"Creating layer {name}")
        yield LogLine("net.cpp:86", f"Creating Layer {name}")
        for bottom in node.bottoms:
            yield LogLine("net.cpp:408", f"{name} <- {bottom}")
        yield from _top_lines(node)
        yield LogLine("net.cpp:124", f"Setting up {name}")
        for top, weight in zip(node.tops, node.loss_weights, strict=True):
            shape = net.graph.shapes[top]
            num_elems += count_of(shape)
            yield LogLine("net.cpp:131", f"Top shape: {_shape_text(shape)}")
            if weight:
                yield LogLine("net.cpp:134", f"    with loss weight {number(weight)}")
        yield LogLine("net.cpp:139", f"Memory required for data: {num_elems * net.dtype.itemsize}")
    for node in reversed(net.graph.nodes):
        if node.needs_backward:
            yield LogLine("net.cpp:200", f"{node.layer.name} needs backward computation.")
        else:
            yield LogLine("net.cpp:202", f"{node.layer.name} does not need backward computation.")
    for name in net.outputs:
        yield LogLine("net.cpp:244", f"This network produces output {name}")
    yield LogLine("net.cpp:257", "Network initialization done.")


def _top_lines(node: Node) -> Iterator[LogLine]:
    for i, top in enumerate(node.tops):
        if top in node.bottoms[i : i + 1]:
            yield LogLine("net.cpp:369", f"{node.layer.name} -> {top} (in-place)")
        else:
            yield LogLine("net.cpp:382", f"{node.layer.name} -> {top}")


def _shape_text(shape: Shape) -> str:
    return " ".join([*map(str, shape), f"({count_of(shape)})"])
