"""What drawings of a net can say about a layer besides its options: parameters, schemes, shapes of its tops.

    facts = net_facts(source, plan=plan, shapes=shapes)
    facts.layers["fc6"]         LayerFacts(num_params=37752832, schemes=("FACTORS",), …)
    PictureOptions(notes=facts.notes(), blob_notes=facts.blob_notes())

`draw-net` and the report both draw from this. A plan calls parameters `layer/index` after the layer that owns them;
shapes of parameters are in the plan, and in what a run has recorded (`shapes["params"]`). A layer that shares another's
parameters, by name, has none of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from poseidon.plan import CommPlan, Scheme
from poseidon.spec import NetSource

Extents = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NetShapes:
    """Extents by the name of a blob, and by that of a parameter (`fc6/0`)."""

    blobs: Mapping[str, Extents] = field(default_factory=dict)
    params: Mapping[str, Extents] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What a layer's own parameters are, and how they travel: by which schemes, in the order of the parameters."""

    params: tuple[Extents, ...] = ()
    schemes: tuple[str, ...] = ()

    @property
    def num_params(self) -> int:
        return sum(map(math.prod, self.params))

    def words(self) -> list[str]:
        found = [" + ".join(map(extents_text, self.params))] if self.params else []
        if self.params:
            found.append(f"{count_text(self.num_params)} parameters")
        return [*found, ", ".join(self.schemes)] if self.schemes else found


@dataclass(frozen=True, slots=True)
class NetFacts:
    layers: Mapping[str, LayerFacts]
    blobs: Mapping[str, Extents]

    def notes(self) -> dict[str, Sequence[str]]:
        """For `PictureOptions.notes`."""
        return {name: facts.words() for name, facts in self.layers.items()}

    def blob_notes(self) -> dict[str, Sequence[str]]:
        return {name: [extents_text(extents)] for name, extents in self.blobs.items()}


def net_facts(source: NetSource, *, plan: CommPlan | None = None, shapes: NetShapes | None = None) -> NetFacts:
    """What is known of a net's layers."""
    shapes = shapes or NetShapes()
    extents: dict[str, Extents] = dict(shapes.params)
    schemes: dict[str, str] = {}
    for unit in plan.units if plan is not None else ():
        extents |= zip(unit.params, unit.shapes, strict=True)
        schemes |= dict.fromkeys(unit.params, "fixed" if unit.scheme is Scheme.LOCAL else unit.scheme.name)
    by_layer: dict[str, list[str]] = {}
    for name in sorted(extents, key=_by_index):
        by_layer.setdefault(name.rpartition("/")[0], []).append(name)
    layers = {
        layer.name: LayerFacts(
            params=tuple(extents[name] for name in by_layer.get(layer.name, ())),
            schemes=tuple(dict.fromkeys(schemes[name] for name in by_layer.get(layer.name, ()) if name in schemes)),
        )
        for layer in source.net.layer
    }
    return NetFacts(layers, dict(shapes.blobs))


def missing_layers(source: NetSource, plan: CommPlan) -> list[str]:
    """Layers that a plan speaks of and the net has not: it was made for another one."""
    known = {layer.name for layer in source.net.layer}
    planned = dict.fromkeys(name.rpartition("/")[0] for unit in plan.units for name in unit.params)
    return [name for name in planned if name not in known]


def extents_text(extents: Extents) -> str:
    """`64 x 3 x 7 x 7`; of a scalar `1`."""
    return " x ".join(map(str, extents)) or "1"


def count_text(number: float) -> str:
    """`431 k`, `61.1 M`: about three digits."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}" if number < 999.5 * size else f"{number / size:.0f}{unit}"
    return f"{number:g}"


def _by_index(name: str) -> tuple[str, int]:
    layer, _, index = name.rpartition("/")
    return layer, int(index) if index.isascii() and index.isdecimal() else 0
