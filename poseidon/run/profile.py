"""A net's profile for the planner: parameters with their structure, layers with their seconds.

    InnerProduct   factors, K = rows × iter_size, added up over all layers that share the weight; its bias rides with it
                   if exactly the same layers share the bias
    Embed          rows: at most as many as there are indices × iter_size × sharers, and as the table has

Structure is what all readers of a parameter agree on: a weight that an InnerProduct shares with another kind of layer,
or with one that keeps it transposed, is dense. A parameter learns if it can get a gradient at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from poseidon.errors import NetError
from poseidon.net import Net
from poseidon.net.graph import Node
from poseidon.net.layer import count_of
from poseidon.net.layers.embed import Embed
from poseidon.net.layers.inner_product import InnerProduct
from poseidon.net.params import ParamEntry
from poseidon.plan import FactorShape, LayerProfile, NetProfile, ParamProfile, RowShape
from poseidon.run.layer_times import LayerTime, inner_product_rows


@dataclass(frozen=True, slots=True)
class Reading:
    """A node that reads a parameter, as the blob of this index."""

    node: Node
    index: int


@dataclass(slots=True)
class _Found:
    """A parameter, its name in the plan, and who reads it."""

    name: str
    entry: ParamEntry
    readings: list[Reading] = field(default_factory=list)

    @property
    def learns(self) -> bool:
        return self.entry.value.requires_grad and any(reading.node.needs_backward for reading in self.readings)


def param_names(net: Net) -> list[str]:
    """What plans call the parameters of `net.learnable`: the owner's layer and the index, as in `fc6/0`."""
    names = [f"{entry.layer}/{entry.index}" for entry in net.learnable]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        layer = twice[0].rpartition("/")[0]
        raise NetError(
            f"several layers with parameters are called {layer!r}; workers need names that tell them apart: rename one"
        )
    return names


def profile_net(
    net: Net, times: Sequence[LayerTime], *, iter_size: int = 1, needs_all_gradients: bool = False
) -> NetProfile:
    """The profile of a net in its TRAIN phase; `times` are one pass over one batch, for every node in order."""
    found = _find_params(net)
    by_reader: dict[tuple[int, int], str] = {}
    for param in found:
        for reading in param.readings:
            by_reader[id(reading.node), reading.index] = param.name
    layers = tuple(
        LayerProfile(
            name=node.layer.name,
            forward_s=seconds.forward_s,
            backward_s=seconds.backward_s,
            params=tuple(by_reader[id(node), i] for i in range(node.layer.num_params)),
        )
        for node, seconds in zip(net.graph.nodes, times, strict=True)
    )
    one_pass_s = sum(layer.forward_s + layer.backward_s for layer in layers)
    return NetProfile(
        layers=layers,
        params=_described(found, iter_size),
        needs_all_gradients=needs_all_gradients,
        between_s=one_pass_s * (iter_size - 1),
    )


def _find_params(net: Net) -> list[_Found]:
    found = [_Found(name, entry) for name, entry in zip(param_names(net), net.learnable, strict=True)]
    by_value = {id(param.entry.value): param for param in found}
    for node in net.graph.nodes:
        for index in range(node.layer.num_params):
            by_value[id(node.layer.param_owner(index))].readings.append(Reading(node, index))
    return found


def _described(found: Sequence[_Found], iter_size: int) -> tuple[ParamProfile, ...]:
    factors = {param.name: _factors(param, iter_size) for param in found}
    with_factors = {_readers(param.readings): param.name for param in found if factors[param.name] and param.learns}
    described = []
    for param in found:
        value = param.entry.value
        described.append(
            ParamProfile(
                name=param.name,
                shape=tuple(value.shape),
                elem_bytes=value.element_size(),
                learns=param.learns,
                factors=factors[param.name],
                rows=_rows(param, iter_size),
                rides_with=with_factors.get(_readers(param.readings)) if _is_bias(param) else None,
            )
        )
    return tuple(described)


def _readers(readings: Sequence[Reading]) -> tuple[int, ...]:
    return tuple(id(reading.node) for reading in readings)


def _factors(param: _Found, iter_size: int) -> FactorShape | None:
    layouts = set()
    num_rows = 0
    for node, index in ((reading.node, reading.index) for reading in param.readings):
        if not isinstance(node.layer, InnerProduct) or index != 0:
            return None
        transposed = node.layer.spec.inner_product_param.transpose
        layouts.add((node.layer.param_shapes[0], transposed))
        num_rows += inner_product_rows(node) if node.needs_backward else 0
    if len(layouts) != 1 or num_rows == 0:
        return None
    shape, transposed = layouts.pop()
    outputs, inputs = reversed(shape) if transposed else shape
    return FactorShape(num_rows * iter_size, outputs, inputs)


def _rows(param: _Found, iter_size: int) -> RowShape | None:
    if not all(isinstance(reading.node.layer, Embed) and reading.index == 0 for reading in param.readings):
        return None
    shapes = {reading.node.layer.param_shapes[0] for reading in param.readings}
    num_indices = sum(count_of(r.node.bottom_shapes[0]) for r in param.readings if r.node.needs_backward) * iter_size
    if len(shapes) != 1 or num_indices == 0:
        return None
    total, width = shapes.pop()
    return RowShape(min(num_indices, total), width, total)


def _is_bias(param: _Found) -> bool:
    return param.learns and all(isinstance(r.node.layer, InnerProduct) and r.index == 1 for r in param.readings)
