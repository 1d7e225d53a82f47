"""Bundles: what one decision of the planner is about — a parameter, or a weight with the biases that ride on it.

Bundles come in the order in which the next forward pass needs them, whatever the order of the profile's parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from poseidon.plan.commplan import Scheme, Unit
from poseidon.plan.cost import Load
from poseidon.plan.profile import FactorShape, NetProfile, ParamProfile


@dataclass(frozen=True, slots=True)
class Bundle:
    """Parameters that always travel together. `place` is the first layer that reads one of them."""

    params: tuple[ParamProfile, ...]
    place: int
    load: Load

    @property
    def num_bytes(self) -> int:
        return self.load.num_elems * self.load.elem_bytes

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """The ways it can travel, simplest first."""
        ways = [Scheme.RING, Scheme.DOUBLING, Scheme.SERVER]
        if self.params[0].factors is not None:
            ways += [Scheme.FACTORS, Scheme.FACTOR_SERVER]
        if self.params[0].rows is not None:
            ways += [Scheme.ROWS]
        if self.params[0].power is not None:
            ways += [Scheme.POWER_SGD]
        return tuple(ways)


@dataclass(frozen=True, slots=True)
class Bundles:
    """A net's parameters: those to be exchanged, and those that stay local."""

    travelling: tuple[Bundle, ...]
    local: tuple[ParamProfile, ...]


def bundles_of(profile: NetProfile, *, alone: bool) -> Bundles:
    """The bundles of a net. With one worker (`alone`) nothing travels."""
    places = _places(profile)
    params = sorted(profile.params, key=lambda param: places[param.name])
    local = [param for param in params if alone or not param.learns]
    learning = {} if alone else {param.name: param for param in params if param.learns}
    riders: dict[str, list[ParamProfile]] = {}
    for param in learning.values():
        if param.rides_with in learning:
            riders.setdefault(learning[param.rides_with].name, []).append(param)
    riding = {rider.name for group in riders.values() for rider in group}
    travelling = []
    for param in learning.values():
        if param.name not in riding:
            members = (param, *riders.get(param.name, ()))
            place = min(places[member.name][0] for member in members)
            num_elems = sum(member.num_elems for member in members)
            travelling.append(
                Bundle(members, place, Load(num_elems, param.elem_bytes, _shapes(members), param.rows, param.power))
            )
    travelling.sort(key=lambda bundle: (bundle.place, places[bundle.params[0].name]))
    return Bundles(tuple(travelling), tuple(local))


def load_of(unit: Unit, params: Mapping[str, ParamProfile]) -> Load:
    """What a unit of a plan carries; dense elements are all alike."""
    members = [params[name] for name in unit.params]
    first = members[0]
    if unit.scheme.is_dense:
        return Load(unit.num_elems, first.elem_bytes)
    return Load(unit.num_elems, first.elem_bytes, _shapes(members), first.rows, first.power)


def _shapes(params: Iterable[ParamProfile]) -> tuple[FactorShape, ...]:
    return tuple(param.factors for param in params if param.factors is not None)


def _places(profile: NetProfile) -> dict[str, tuple[int, int]]:
    """Where each parameter is read first: the layer, and the position among that layer's parameters."""
    places: dict[str, tuple[int, int]] = {}
    for index, layer in enumerate(profile.layers):
        for position, name in enumerate(layer.params):
            places.setdefault(name, (index, position))
    return places
