"""NetProfile: what the planner knows about a net.

    layers   in forward order; seconds of one worker's forward and backward pass over its own batch, and which
             parameters each reads. A shared parameter stands at all its readers.
    params   shape and structure of every parameter

A parameter's *place* is the first layer that reads it. Its gradient is final when backward has passed that layer, and
the next forward pass needs the parameter when it gets to that layer: one number says both.

With iter_size > 1 the layers' seconds are those of one pass, and `between_s` is the rest of the iteration: what is
computed between the first forward pass, which waits for parameters, and the last backward pass, which gives gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from poseidon.errors import PlanError
from poseidon.plan.codec import decode_json, encode_json


@dataclass(frozen=True, slots=True)
class FactorShape:
    """The gradient of an M × N weight as uᵀv: u is K × M (diffs of the outputs), v is K × N (the inputs).

    K counts a worker's rows in one iteration: batch × positions × sharers × iter_size.
    """

    rows: int
    outputs: int
    inputs: int

    def __post_init__(self) -> None:
        _require_positive("factors", rows=self.rows, outputs=self.outputs, inputs=self.inputs)


@dataclass(frozen=True, slots=True)
class RowShape:
    """The gradient of a `total` × `width` table of which a worker touches about `touched` distinct rows."""

    touched: int
    width: int
    total: int

    def __post_init__(self) -> None:
        _require_positive("rows", touched=self.touched, width=self.width, total=self.total)


@dataclass(frozen=True, slots=True)
class ParamProfile:
    """One parameter.

    learns      false: its gradient is nobody's concern, nothing travels
    factors     if its gradient can be had as factors;      rows    if it can be had as rows
    rides_with  for a bias: the weight from whose factors its gradient follows (Σ rows of u), so that it costs no bytes
                where that weight travels as factors
    power       if it may be approximated (POWER_SGD): its matrix, and as `rows` the rank. Only where asked for by name
    why_dense   why it has neither factors nor rows, where people might expect them
    """

    name: str
    shape: tuple[int, ...]
    elem_bytes: int = 4
    learns: bool = True
    factors: FactorShape | None = None
    rows: RowShape | None = None
    rides_with: str | None = None
    why_dense: str = ""
    power: FactorShape | None = None

    def __post_init__(self) -> None:
        _require_positive(f"parameter {self.name!r}", elem_bytes=self.elem_bytes)
        if min(self.shape, default=1) < 1:
            raise PlanError(f"parameter {self.name!r} must have extents of at least 1, got shape {self.shape}")
        for what, covered in (("factors", self._factor_elems), ("rows", self._row_elems)):
            if covered not in (None, self.num_elems):
                raise PlanError(
                    f"parameter {self.name!r} has {self.num_elems} elements, but its {what} describe {covered}"
                )

    @property
    def num_elems(self) -> int:
        return math.prod(self.shape)

    @property
    def _factor_elems(self) -> int | None:
        return None if self.factors is None else self.factors.outputs * self.factors.inputs

    @property
    def _row_elems(self) -> int | None:
        return None if self.rows is None else self.rows.total * self.rows.width


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """One layer: what it costs a worker, and the parameters it reads."""

    name: str
    forward_s: float
    backward_s: float
    params: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, seconds in (("forward_s", self.forward_s), ("backward_s", self.backward_s)):
            if not (math.isfinite(seconds) and seconds >= 0):
                raise PlanError(f"layer {self.name!r}: {what} must be seconds, 0 or more, got {seconds}")


@dataclass(frozen=True, slots=True)
class NetProfile:
    """A net as the planner sees it. `needs_all_gradients`: no update before all are there (clip_gradients)."""

    layers: tuple[LayerProfile, ...]
    params: tuple[ParamProfile, ...]
    needs_all_gradients: bool = False
    between_s: float = 0.0

    def __post_init__(self) -> None:
        names = [param.name for param in self.params]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise PlanError(f"every parameter is described once, got several descriptions of {', '.join(twice)}")
        read = {name for layer in self.layers for name in layer.params}
        if read != set(names):
            missing = ", ".join(sorted(read - set(names))) or "none"
            idle = ", ".join(sorted(set(names) - read)) or "none"
            raise PlanError(
                f"layers must read exactly the parameters described; read but not described: {missing}; "
                f"described but not read: {idle}"
            )
        self._check_riders()
        if not (math.isfinite(self.between_s) and self.between_s >= 0):
            raise PlanError(f"between_s must be seconds, 0 or more, got {self.between_s}")

    def _check_riders(self) -> None:
        by_name = {param.name: param for param in self.params}
        for param in self.params:
            if param.rides_with is None:
                continue
            weight = by_name.get(param.rides_with)
            if weight is None or weight.factors is None:
                raise PlanError(
                    f"parameter {param.name!r} rides with {param.rides_with!r}, which must be a parameter with factors"
                )
            if weight.elem_bytes != param.elem_bytes or param.num_elems != weight.factors.outputs:
                raise PlanError(
                    f"parameter {param.name!r} rides with {param.rides_with!r}: expected its element size and "
                    f"{weight.factors.outputs} elements, got {param.elem_bytes} bytes and {param.num_elems} elements"
                )

    @property
    def compute_s(self) -> float:
        """What an iteration takes a worker that never waits."""
        return math.fsum([self.between_s, *(s for layer in self.layers for s in (layer.forward_s, layer.backward_s))])

    def to_json(self) -> str:
        return encode_json(self)

    @classmethod
    def from_json(cls, text: str) -> NetProfile:
        return decode_json(cls, text)


def _require_positive(what: str, **numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise PlanError(f"{what}: {name} must be at least 1, got {number}")
