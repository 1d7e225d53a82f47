"""Measured: what a few passes tell about a model: who reads what, how many rows, how long.

    first pass     watched (reading.py), not timed
    further ones   timed: a layer's forward pass lasts from its gate to the next one's, its backward pass from the
                   arrival of the gradients behind it to its own
    and again      timed once more with the plan that was made from these, if some gradients no longer are computed as
                   they were: that of a weight whose factors travel, or of a table with few rows read, takes no time in
                   backward now

Layers are the modules that read parameters, in the order in which the forward pass reaches them. While passes are timed
gradients wait for the end of backward, so that no exchange disturbs them. What else runs on a host can make a pass only
longer: of a layer's times the shortest counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from poseidon.parallel.forwards import Forward
from poseidon.parallel.structure import Described, Structure
from poseidon.plan import FactorShape, LayerProfile, NetProfile, ParamProfile, RowShape

NUM_TIMED = 2


@dataclass(slots=True)
class _Pass:
    entered: dict[str, float] = field(default_factory=dict)  # by module, in order
    forward_end: float = 0.0
    arrived: dict[str, float] = field(default_factory=dict)  # by parameter


class Measuring:
    """Collects while `is_over` is false. All workers collect in the same passes."""

    def __init__(self, structure: Structure, forwards: Mapping[str, Forward]) -> None:
        self._structure, self._forwards = structure, forwards
        self._passes: list[_Pass] = []
        self._current = _Pass()
        self.is_again = False
        self.readers: dict[str, set[str]] = {}
        self.num_rows = dict.fromkeys(forwards, 0)  # by module; a worker without data has none

    @property
    def watches(self) -> bool:
        """True before the pass that is watched; what cannot be looked into cannot be watched either."""
        return not self._passes and not self._structure.atoms

    @property
    def is_over(self) -> bool:
        return len(self._passes) > NUM_TIMED

    @property
    def has_seen(self) -> bool:
        """Whether this worker had a pass of its own."""
        return any(found.entered for found in self._passes)

    def repeat(self) -> None:
        """Times further passes, now that gradients are computed as planned. What was watched stays known."""
        del self._passes[1:]
        self.num_rows = dict.fromkeys(self._forwards, 0)
        self.is_again = True

    def begin(self) -> None:
        self._current = _Pass()
        for forward in self._forwards.values():
            forward.start_counting()

    def enter(self, module: str) -> None:
        self._current.entered.setdefault(module, time.perf_counter())

    def end_forward(self) -> None:
        self._current.forward_end = time.perf_counter()

    def end(self, arrived: Mapping[str, float]) -> None:
        """The pass is through, gradients included."""
        self._current.arrived = dict(arrived)
        self._passes.append(self._current)
        for name, forward in self._forwards.items():
            self.num_rows[name] = max(self.num_rows[name], forward.stop_counting())

    def skip(self) -> None:
        """A pass that only the others had: it counts, as empty."""
        self._passes.append(_Pass())

    # -- results ----------------------------------------------------------------------------------------------------
    def layers(self) -> list[str]:
        """Modules in forward order; what was never reached comes last."""
        order = list(dict.fromkeys(name for found in reversed(self._passes) for name in found.entered))
        return order + [name for name in self._structure.readers if name not in order]

    def seconds(self) -> list[list[float]]:
        """Of each reader, in the model's order, forward and backward: the shortest of the timed passes."""
        layers, reads = self.layers(), self.reads()
        timed = self._passes[1:]
        forward = [min(self._forward_s(found, name) for found in timed) for name in layers]
        by_pass = [self._backward_s(found, layers, reads) for found in timed]
        backward = [min(seconds) for seconds in zip(*by_pass, strict=True)]
        found = {name: [f, b] for name, f, b in zip(layers, forward, backward, strict=True)}
        return [found[name] for name in self._structure.readers]

    def seen_reads(self) -> dict[str, list[str]]:
        """The same of modules that were seen at work; what the others read is anybody's guess."""
        seen = self._seen()
        return {name: params for name, params in self.reads().items() if name in seen}

    def reads(self) -> dict[str, list[str]]:
        """By module: the parameters it reads, its own and others'. What nobody was seen to read, anybody may: that is
        the model's as a whole."""
        found: dict[str, list[str]] = {name: [] for name in self._structure.readers}
        for name, described in self._structure.params.items():
            for module in dict.fromkeys(holder.module_name for holder in described.holders):
                found[module].append(name)
            for module in sorted(self.readers.get(name, ())):
                if name not in found[self._reader(module)]:
                    found[self._reader(module)].append(name)
        covered = {name for module in self._seen() for name in found[module]}
        found[""] += [name for name in self._structure.params if name not in covered and name not in found[""]]
        return found

    def _seen(self) -> set[str]:
        """The modules that were seen at work."""
        return {name for found in self._passes for name in found.entered}

    def _reader(self, module: str) -> str:
        """The module itself, or the nearest one around it that has a gate."""
        while module not in self._structure.readers:
            module = module.rpartition(".")[0]
        return module

    def _forward_s(self, found: _Pass, name: str) -> float:
        if name not in found.entered:
            return 0.0
        begin = found.entered[name]
        later = [time_s for time_s in found.entered.values() if time_s > begin]
        return max(0.0, min(later, default=found.forward_end) - begin)

    def _backward_s(self, found: _Pass, layers: Iterable[str], reads: Mapping[str, list[str]]) -> list[float]:
        seconds, reached = {}, found.forward_end
        for name in reversed(list(layers)):
            own = max(
                (found.arrived[param] for param in reads.get(name, ()) if param in found.arrived), default=reached
            )
            seconds[name] = max(0.0, own - reached)
            reached = max(reached, own)
        return [seconds[name] for name in layers]


def profile_of(
    structure: Structure,
    measuring: Measuring,
    seconds: list[list[float]],
    num_rows: Mapping[str, int],
    *,
    needs_all_gradients: bool,
) -> NetProfile:
    """The model as the planner sees it; `seconds` and `num_rows` (by module) are those agreed among workers."""
    reads = measuring.reads()
    seconds_of = dict(zip(structure.readers, seconds, strict=True))
    layers = []
    for name in measuring.layers():
        forward_s, backward_s = seconds_of[name]
        layers.append(LayerProfile(name or "(model)", forward_s, backward_s, tuple(reads[name])))
    params = tuple(_described(found, measuring, num_rows) for found in structure.params.values())
    return NetProfile(tuple(layers), _riding(params), needs_all_gradients)


def _riding(params: tuple[ParamProfile, ...]) -> tuple[ParamProfile, ...]:
    """A bias rides only on what has factors in the end."""
    with_factors = {param.name for param in params if param.factors is not None}
    return tuple(
        param if param.rides_with in (None, *with_factors) else replace(param, rides_with=None) for param in params
    )


def _described(found: Described, measuring: Measuring, num_rows: Mapping[str, int]) -> ParamProfile:
    value = found.parameter
    rows = sum(num_rows.get(holder.module_name, 0) for holder in found.holders)
    why = found.why_dense
    strangers = measuring.readers.get(found.name, set()) - {holder.module_name for holder in found.holders}
    if (found.factors or found.rows) and strangers and not found.sparse:
        names = [name or "(model)" for name in sorted(strangers)[:2]]
        why = f"{' and '.join(map(repr, names))} reads it besides its own layer"
    elif (found.factors or found.rows) and rows == 0 and not found.sparse:
        why = "no gradient came through its own layer"
    plain = ParamProfile(
        name=found.name,
        shape=tuple(value.shape),
        elem_bytes=value.element_size(),
        learns=value.requires_grad,
        rides_with=found.rides_with,
        why_dense=why,
    )
    if why and not found.sparse:
        return plain
    if found.factors:
        return replace(plain, factors=FactorShape(rows, *value.shape))
    if found.rows:
        touched = max(1, min(rows, len(value)))
        return replace(plain, rows=RowShape(touched, value.shape[1], len(value)))
    return plain
