"""CommPlan: which parameters travel together, how, in which pieces and in which order; and what that should cost.

    units   every parameter of the net is in exactly one. Several dense ones may be fused, and several weights whose
            factors have as many rows; a table stands alone. Each weight that travels as factors is followed by the
            biases that ride on it. A unit's gradient is its parameters' gradients, flat,
            one after the other in the order of `params`. What does not learn is in one LOCAL unit, the last.
    order   the sends, in the order in which every worker starts them. The sends of a unit cover its elements once,
            from first to last. ROWS, DOUBLING and POWER_SGD are sent in one piece. The pieces of a FACTORS unit are
            rows, for each of which an even share of the elements stands (`Send.rows`). Those of a FACTOR_SERVER unit
            are slabs: its weight's elements are counted slice by slice along the larger dimension (of equal ones, the
            outputs), a piece has whole slices, and riding biases come with the last.
    barrier no update before all gradients are there (clip_gradients)

A plan is frozen, compares by value, and is the same text as JSON on every worker: `digest()` tells whether two workers
hold the same one.
"""

from __future__ import annotations

import enum
import hashlib
import math
from dataclasses import dataclass

from poseidon.errors import PlanError, UsageError
from poseidon.plan.cluster import Cluster
from poseidon.plan.codec import decode_json, encode_json
from poseidon.plan.table import plan_text

FORMAT = 1


class Scheme(enum.Enum):
    """How a unit is exchanged. The value is how people write it."""

    LOCAL = "local"  # not at all
    RING = "ring"  # dense all-reduce; every worker updates
    DOUBLING = "doubling"  # the same in few rounds, each with one partner: for what is small
    SERVER = "server"  # dense: shards pushed to their owners, updated there, pulled
    FACTORS = "factors"  # the factors of an inner product, gathered; every worker rebuilds and updates
    FACTOR_SERVER = "factor-server"  # factors pushed to the owners of slices, updated there, pulled dense
    ROWS = "rows"  # the rows of a table that were touched, gathered; every worker updates
    POWER_SGD = "powersgd"  # lossy: the strongest directions of a matrix, gathered; every worker updates
    TREE = "tree"  # dense, by notified puts only: up a tree to its root, updated there, values down again

    @property
    def is_dense(self) -> bool:
        return self in (Scheme.RING, Scheme.DOUBLING, Scheme.SERVER, Scheme.TREE)

    @property
    def has_owners(self) -> bool:
        """Whether some workers update and hand out new values; else everybody updates."""
        return self in (Scheme.SERVER, Scheme.FACTOR_SERVER, Scheme.TREE)


STALE_SCHEMES = (Scheme.SERVER, Scheme.FACTOR_SERVER)  # those that can be a few clocks behind
IN_ONE_PIECE = (Scheme.ROWS, Scheme.DOUBLING, Scheme.POWER_SGD)
WIRES = ("fp32", "bf16", "fp16")
COLLECTIVE, GPI = PATTERNS = ("collective", "gpi")
PATTERN_SCHEMES = {
    COLLECTIVE: tuple(scheme for scheme in Scheme if scheme is not Scheme.TREE),
    GPI: (Scheme.LOCAL, Scheme.SERVER, Scheme.FACTORS, Scheme.TREE),
}


def parse_scheme(text: str) -> Scheme:
    """A scheme by name; `_` and `-`, upper and lower case are alike."""
    for scheme in Scheme:
        if text.strip().lower().replace("_", "-") == scheme.value:
            return scheme
    raise UsageError(f"a scheme is one of {', '.join(scheme.value for scheme in Scheme)}, got {text!r}")


@dataclass(frozen=True, slots=True)
class Unit:
    """What travels together.

    dense_bytes     what a node would send by RING;   factor_bytes   by FACTORS, or by ROWS (None: it has neither)
    bytes_sent      what a node sends by `scheme`; of nodes that differ, the busiest. All per iteration, rounded.
    seconds         from start to end of its sends if nothing else were on the link
    reason          why this scheme, in one short sentence
    """

    index: int
    params: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    num_elems: int
    scheme: Scheme
    dense_bytes: int
    factor_bytes: int | None
    bytes_sent: int
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Send:
    """Elements [start, stop) of a unit's flat gradient; see CommPlan for what that means to each scheme."""

    unit: int
    start: int
    stop: int

    def rows(self, num_elems: int, num_rows: int) -> tuple[int, int]:
        """The rows of factors it carries, of a FACTORS unit with so many elements and rows."""
        number, grain_elems = row_grains(num_elems, num_rows)
        if number == 1:
            return 0, num_rows
        return self.start // grain_elems, num_rows if self.stop == num_elems else self.stop // grain_elems


def row_grains(num_elems: int, num_rows: int) -> tuple[int, int]:
    """How a FACTORS unit can be cut: into how many grains, and how many elements stand for each.

    A row is a grain; where there are more rows than elements, all of them are one.
    """
    return (num_rows, num_elems // num_rows) if num_rows <= num_elems else (1, num_elems)


@dataclass(frozen=True, slots=True)
class CommPlan:
    """See the module's docstring.

    wire            what dense gradients cross the network as; `fp32` stands for the elements' own width
    in_flight       how many sends may be on their way at once
    iteration_s     predicted;   compute_s   what it would be if no worker ever waited
    pattern         `collective`: operations that workers take part in together; `gpi`: notified puts (`flows.py`)
    """

    units: tuple[Unit, ...]
    order: tuple[Send, ...]
    barrier: bool
    cluster: Cluster
    wire: str
    in_flight: int
    iteration_s: float
    compute_s: float
    format: int = FORMAT
    pattern: str = COLLECTIVE

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise PlanError(f"the plan has format {self.format}, this version reads {FORMAT}: make a new plan")
        if self.wire not in WIRES:
            raise PlanError(f"a plan's wire is one of {', '.join(WIRES)}, got {self.wire!r}")
        if self.in_flight < 1:
            raise PlanError(f"a plan's in_flight must be at least 1, got {self.in_flight}")
        if self.pattern not in PATTERNS:
            raise PlanError(f"a plan's pattern is one of {', '.join(PATTERNS)}, got {self.pattern!r}")
        if self.pattern == GPI and self.wire != WIRES[0]:
            raise PlanError(f"notified puts move elements as they are (fp32), got a plan with wire {self.wire!r}")
        self._check_units()
        self._check_order()

    def _check_units(self) -> None:
        if [unit.index for unit in self.units] != list(range(len(self.units))):
            raise PlanError(f"units are numbered from 0 in order, got {[unit.index for unit in self.units]}")
        names = [name for unit in self.units for name in unit.params]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise PlanError(f"a parameter is in one unit only, got several units with {', '.join(twice)}")
        if any(unit.scheme is Scheme.LOCAL for unit in self.units[:-1]):
            raise PlanError("what stays local is one unit, the last, got a LOCAL unit before others")
        for unit in self.units:
            if unit.scheme not in PATTERN_SCHEMES[self.pattern]:
                raise PlanError(
                    f"unit {unit.index} ({unit.params[0]}) goes by {unit.scheme.name}, which the pattern "
                    f"{self.pattern!r} has not"
                )
            if not unit.params or len(unit.params) != len(unit.shapes):
                raise PlanError(f"unit {unit.index} needs parameters and a shape for each, got {unit.params}")
            num_elems = sum(math.prod(shape) for shape in unit.shapes)
            if num_elems != unit.num_elems:
                raise PlanError(
                    f"unit {unit.index} ({unit.params[0]}) says {unit.num_elems} elements, its shapes have {num_elems}"
                )

    def _check_order(self) -> None:
        reached = [0] * len(self.units)
        for send in self.order:
            if not 0 <= send.unit < len(self.units) or self.units[send.unit].scheme is Scheme.LOCAL:
                raise PlanError(f"the order sends unit {send.unit}, which is no unit that travels")
            unit = self.units[send.unit]
            in_one_piece = unit.scheme in IN_ONE_PIECE
            follows = send.start == reached[send.unit] and send.start < send.stop <= unit.num_elems
            if not follows or (in_one_piece and (send.start, send.stop) != (0, unit.num_elems)):
                raise PlanError(
                    f"the sends of unit {send.unit} ({unit.params[0]}) must cover its {unit.num_elems} elements once, "
                    f"in order{' and in one piece' if in_one_piece else ''}, got [{send.start}, {send.stop})"
                )
            reached[send.unit] = send.stop
        for unit in self.units:
            if unit.scheme is not Scheme.LOCAL and reached[unit.index] != unit.num_elems:
                raise PlanError(
                    f"unit {unit.index} ({unit.params[0]}) has {unit.num_elems} elements, but the order sends "
                    f"{reached[unit.index]}"
                )

    # -- looking ----------------------------------------------------------------------------------------------------
    @property
    def bytes_sent(self) -> int:
        """What a node sends in an iteration."""
        return sum(unit.bytes_sent for unit in self.units)

    def unit_of(self) -> dict[str, Unit]:
        """The unit of every parameter."""
        return {name: unit for unit in self.units for name in unit.params}

    def table(self) -> str:
        """The plan for people, at most 100 columns wide."""
        return plan_text(self)

    def __str__(self) -> str:
        return self.table()

    # -- JSON -------------------------------------------------------------------------------------------------------
    def to_json(self) -> str:
        return encode_json(self)

    @classmethod
    def from_json(cls, text: str) -> CommPlan:
        return decode_json(cls, text)

    def digest(self) -> str:
        """SHA-256 of the JSON, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()
