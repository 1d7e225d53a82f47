"""Sweep: what a faster switch, one more host or a larger batch would give, one of them changed at a time.

    images/s     P · n / T      n images per worker and iteration, T the planned iteration
    speed-up     images/s over those of one worker alone
    efficiency   speed-up / P

Every point is planned anew: another cluster may want other schemes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poseidon.errors import UsageError
from poseidon.plan.cluster import PAYLOAD_SHARE, Cluster, parse_bandwidth, rate_text
from poseidon.plan.commplan import CommPlan, Scheme
from poseidon.plan.planner import make_plan
from poseidon.plan.profile import NetProfile
from poseidon.plan.request import PlanRequest

BANDWIDTH, WORKERS, BATCH = AXES = ("bandwidth", "workers", "batch")
COMMON_RATES = (1e9, 2.5e9, 10e9, 25e9, 40e9, 100e9)  # what switches are sold with
MOST_POINTS = 64


@dataclass(frozen=True, slots=True)
class Setting:
    """What is planned for: a cluster, and the batch of each worker."""

    cluster: Cluster
    batch: int


@dataclass(frozen=True, slots=True)
class Point:
    """One setting's forecast.

    axis, value     what was changed, and to what, as people write it; `is_given`: to what it was already
    images          per worker and iteration
    schemes         which part of the elements that learn goes by each scheme
    """

    axis: str
    value: str
    is_given: bool
    num_workers: int
    bandwidth_bps: float
    batch: int
    images: int
    compute_s: float
    iteration_s: float
    bytes_sent: int
    schemes: tuple[tuple[Scheme, float], ...]

    @property
    def images_per_s(self) -> float:
        return self.num_workers * self.images / self.iteration_s

    @property
    def speed_up(self) -> float:
        return self.num_workers * self.compute_s / self.iteration_s

    @property
    def efficiency(self) -> float:
        return self.compute_s / self.iteration_s


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing to change, and to which values; none: to the usual ones."""

    name: str
    values: tuple[str, ...] = ()


def parse_sweep(text: str) -> tuple[Axis, ...]:
    """`bandwidth,workers` or, with values, `bandwidth=1gbit:10gbit,workers=8:9:16`."""
    axes: list[Axis] = []
    for part in text.split(","):
        name, equals, values = (piece.strip() for piece in part.partition("="))
        if name not in AXES:
            raise UsageError(f"a sweep goes over some of {', '.join(AXES)}, separated by commas, got {part!r}")
        if any(axis.name == name for axis in axes):
            raise UsageError(f"the sweep names {name} twice: give all its values at once, as in {name}=…:…")
        if equals and not all(value.strip() for value in values.split(":")):
            raise UsageError(f"values of {name} are separated by colons, as in {name}={_example(name)}, got {part!r}")
        axes.append(Axis(name, tuple(value.strip() for value in values.split(":")) if equals else ()))
    if sum(len(axis.values) for axis in axes) > MOST_POINTS:
        raise UsageError(f"a sweep has at most {MOST_POINTS} values: each is planned anew; leave some out")
    return tuple(axes)


def _example(name: str) -> str:
    return "1gbit:10gbit" if name == BANDWIDTH else "8:16"


# -- the settings of an axis ------------------------------------------------------------------------------------------
def settings_of(axis: Axis, given: Setting) -> list[tuple[str, Setting]]:
    """Each value with its setting, smallest first; the given one is among them."""
    if axis.name == BANDWIDTH:
        return _bandwidths(axis, given)
    if axis.name == WORKERS:
        return _workers(axis, given)
    counts = [_count(axis, value) for value in axis.values]
    usual = [given.batch // 2, given.batch * 2, given.batch * 4]
    return [
        (str(batch), replace(given, batch=batch)) for batch in sorted({given.batch, *(counts or usual)}) if batch > 0
    ]


def _bandwidths(axis: Axis, given: Setting) -> list[tuple[str, Setting]]:
    now_bps = given.cluster.bandwidth_bps / PAYLOAD_SHARE
    asked = [parse_bandwidth(value) for value in axis.values]
    rates = {round(rate) for rate in (asked or [rate for rate in COMMON_RATES if rate >= now_bps / 10])} | {
        round(now_bps)
    }
    settings = []
    for rate in sorted(rates):
        is_now = rate == round(now_bps)
        payload_bps = given.cluster.bandwidth_bps if is_now else rate * PAYLOAD_SHARE
        settings.append((rate_text(rate), replace(given, cluster=replace(given.cluster, bandwidth_bps=payload_bps))))
    return settings


def _workers(axis: Axis, given: Setting) -> list[tuple[str, Setting]]:
    """Whole nodes come and go, each like the first."""
    nodes = given.cluster.node_workers
    each = nodes[0]
    if axis.values:
        counts = [_count(axis, value) for value in axis.values]
        wrong = [count for count in counts if count % each]
        if wrong:
            raise UsageError(f"a node has {each} workers: expected multiples of that in the sweep, got {wrong[0]}")
        variants = [(each,) * (count // each) for count in counts]
    else:
        few = {1, max(1, len(nodes) // 2), 2 * len(nodes), 4 * len(nodes)}
        variants = [(*nodes, each), *((each,) * number for number in few)]
    if len(nodes) > 1 and len(set(nodes)) == 1:  # the given ones need not be listed twice
        variants = [variant for variant in variants if variant != nodes]
    found = {sum(variant): variant for variant in variants} | {sum(nodes): nodes}
    return [
        (str(count), replace(given, cluster=replace(given.cluster, node_workers=found[count])))
        for count in sorted(found)
    ]


def _count(axis: Axis, value: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", value, re.ASCII):
        raise UsageError(f"values of {axis.name} are numbers from 1 to 999999, got {value!r}")
    return int(value)


# -- forecasts --------------------------------------------------------------------------------------------------------
ProfileOf = Callable[[int], NetProfile]
"""The profile of the net with a worker's batch."""


def sweep(
    axes: Sequence[Axis], given: Setting, profile_of: ProfileOf, request: PlanRequest, iter_size: int = 1
) -> list[Point]:
    """All points, axis by axis."""
    profiles: dict[int, NetProfile] = {}
    known: dict[Setting, CommPlan] = {}
    points = []
    for axis in axes:
        for value, setting in settings_of(axis, given):
            if setting.batch not in profiles:
                profiles[setting.batch] = profile_of(setting.batch)
            if setting not in known:
                known[setting] = make_plan(profiles[setting.batch], setting.cluster, request)
            plan = known[setting]
            points.append(
                Point(
                    axis=axis.name,
                    value=value,
                    is_given=setting == given,
                    num_workers=setting.cluster.num_workers,
                    bandwidth_bps=setting.cluster.bandwidth_bps,
                    batch=setting.batch,
                    images=setting.batch * iter_size,
                    compute_s=plan.compute_s,
                    iteration_s=plan.iteration_s,
                    bytes_sent=plan.bytes_sent,
                    schemes=scheme_shares(plan),
                )
            )
    return points


def scheme_shares(plan: CommPlan) -> tuple[tuple[Scheme, float], ...]:
    """Which part of the elements that travel goes by each scheme, largest first."""
    travelling = [unit for unit in plan.units if unit.scheme is not Scheme.LOCAL]
    total = sum(unit.num_elems for unit in travelling)
    shares = {
        scheme: sum(unit.num_elems for unit in travelling if unit.scheme is scheme) / total
        for scheme in Scheme
        if any(unit.scheme is scheme for unit in travelling)
    }
    return tuple(sorted(shares.items(), key=lambda entry: -entry[1]))
