"""PlanRequest: what a user may ask of a plan, and what that leaves the planner to choose from.

    scheme      for all that can travel so; the rest goes by RING
    overrides   for parameters by name: `fc6/0`, or a layer `fc6`, with * and ? as in file names; the last one that
                matches counts, and beats `scheme`

A weight and the biases that ride on it are decided together: naming one names all.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from poseidon.errors import UsageError
from poseidon.plan.bundles import Bundle
from poseidon.plan.commplan import (
    COLLECTIVE,
    GPI,
    IN_ONE_PIECE,
    PATTERN_SCHEMES,
    PATTERNS,
    WIRES,
    Scheme,
    parse_scheme,
)
from poseidon.plan.order import Order

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Override:
    """A scheme for the parameters whose name, or whose layer's, matches."""

    pattern: str
    scheme: Scheme

    def matches(self, bundle: Bundle) -> bool:
        names = [param.name for param in bundle.params]
        layers = [name.rpartition("/")[0] for name in names]
        return any(fnmatch.fnmatchcase(name, self.pattern) for name in (*names, *layers))


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is asked for.

    `in_flight`: how many sends may be on their way; None: the planner decides. `fuse_bytes`, `chunk_bytes` and `orders`
    are the candidates it tries. `among`: the schemes the runtime has; `whole`: those whose units it sends in one piece.
    `cuts_single`: in the end single units may be cut finer than the others.
    """

    wire: str = "fp32"
    scheme: Scheme | None = None
    overrides: tuple[Override, ...] = ()
    in_flight: int | None = None
    fuse_bytes: tuple[float, ...] = (0, MB / 4, MB / 2, MB, 2 * MB, 4 * MB, 8 * MB, 16 * MB)
    chunk_bytes: tuple[float, ...] = (MB, 2 * MB, 4 * MB, 8 * MB, 16 * MB, 64 * MB, float("inf"))
    orders: tuple[Order, ...] = (Order.READY, Order.NEEDED)
    among: tuple[Scheme, ...] = tuple(Scheme)
    pattern: str = COLLECTIVE
    whole: tuple[Scheme, ...] = IN_ONE_PIECE
    cuts_single: bool = True

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise UsageError(f"a pattern is one of {', '.join(PATTERNS)}, got {self.pattern!r}")
        if self.pattern == GPI and self.wire != WIRES[0]:
            raise UsageError(
                f"the pattern {GPI!r} moves gradients as they are, got wire {self.wire!r}: leave one of the two out"
            )
        if self.wire not in WIRES:
            raise UsageError(f"what crosses the network is one of {', '.join(WIRES)}, got {self.wire!r}")
        if self.in_flight is not None and self.in_flight < 1:
            raise UsageError(f"at least 1 send must be on its way, got in_flight {self.in_flight}")
        if not (self.fuse_bytes and self.chunk_bytes and self.orders):
            raise UsageError("give at least one candidate each for fuse_bytes, chunk_bytes and orders")
        if min(self.fuse_bytes) < 0 or min(self.chunk_bytes) <= 0:
            raise UsageError(f"sizes must be above 0, got fuse_bytes {self.fuse_bytes}, chunk_bytes {self.chunk_bytes}")
        asked = [override.scheme for override in self.overrides]
        if Scheme.LOCAL in (self.scheme, *asked):
            raise UsageError("what learns cannot stay local, or replicas would drift apart: ask for another scheme")
        for scheme in (self.scheme, *asked):
            if scheme is not None and scheme not in PATTERN_SCHEMES[self.pattern]:
                ways = ", ".join(way.value for way in PATTERN_SCHEMES[self.pattern] if way is not Scheme.LOCAL)
                raise UsageError(
                    f"the pattern {self.pattern!r} has the schemes {ways}, not {scheme.value}: choose one of them"
                )

    def keeps_whole(self, scheme: Scheme) -> bool:
        """True if the runtime sends a unit of this scheme in one piece."""
        return scheme in self.whole or (self.pattern == GPI and scheme is Scheme.FACTORS)

    def ways_of(self, bundle: Bundle) -> tuple[Scheme, ...]:
        """How a bundle can travel under this pattern, simplest first."""
        structured = (scheme for scheme in bundle.schemes if not scheme.is_dense)
        ways = bundle.schemes if self.pattern == COLLECTIVE else (Scheme.SERVER, Scheme.TREE, *structured)
        known = PATTERN_SCHEMES[self.pattern]
        return tuple(scheme for scheme in ways if scheme in self.among and scheme in known)


def parse_overrides(text: str) -> tuple[Override, ...]:
    """`fc6=ring,fc7*=factors` as overrides."""
    overrides = []
    for part in text.split(","):
        pattern, equals, scheme = part.partition("=")
        if not (pattern.strip() and equals):
            raise UsageError(f"schemes of units are written NAME=SCHEME, separated by commas, got {part!r} in {text!r}")
        overrides.append(Override(pattern.strip(), parse_scheme(scheme)))
    return tuple(overrides)


def allowed_schemes(bundles: Sequence[Bundle], request: PlanRequest) -> list[tuple[Scheme, ...]]:
    """What each bundle may choose from: one scheme where the request decides, else all it can."""
    for override in request.overrides:
        matched = [bundle for bundle in bundles if override.matches(bundle)]
        if not matched:
            known = ", ".join(bundle.params[0].name for bundle in bundles[:8])
            raise UsageError(
                f"no parameter that learns matches {override.pattern!r}; parameters: "
                f"{known}{', …' if len(bundles) > 8 else ''}"
            )
        for bundle in matched:
            ways_there = request.ways_of(bundle)
            if override.scheme not in ways_there:
                ways = ", ".join(scheme.value for scheme in ways_there)
                raise UsageError(
                    f"{bundle.params[0].name} cannot travel by {override.scheme.value}, as {override.pattern!r} asks; "
                    f"it can by {ways}"
                )
    return [_allowed(bundle, request) for bundle in bundles]


def _allowed(bundle: Bundle, request: PlanRequest) -> tuple[Scheme, ...]:
    asked = [override.scheme for override in request.overrides if override.matches(bundle)]
    if asked:
        return (asked[-1],)
    ways = request.ways_of(bundle)
    if request.scheme is None:
        return ways
    return (request.scheme if request.scheme in ways else ways[0],)
