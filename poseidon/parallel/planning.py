"""Planning: the plan that all workers agree on.

    first_plan      before anything is known: tables by rows, all else dense, in the model's order
    plan_together   from what the workers have measured: seconds of layers, rows, links, rates. One of them makes it

Every worker gets every averaged gradient, so that any optimizer can follow: the schemes are those that give it.
"""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from poseidon.errors import UsageError
from poseidon.parallel.measured import Measuring, profile_of
from poseidon.parallel.structure import Described, Structure
from poseidon.parallel.traffic import Agreed
from poseidon.plan import (
    PAYLOAD_SHARE,
    Cluster,
    CommPlan,
    FactorShape,
    LayerProfile,
    NetProfile,
    Order,
    Override,
    ParamProfile,
    PlanRequest,
    RowShape,
    Scheme,
    make_plan,
    parse_bandwidth,
    parse_scheme,
)
from poseidon.plan.cluster import DEFAULT_LATENCY_S
from poseidon.run.attempt import attempt
from poseidon.run.rates import exchange_seconds, product_flops
from poseidon.run.roundtable import Roundtable
from poseidon.transport import Transport
from poseidon.transport.probe import probe

SCHEMES = (Scheme.LOCAL, Scheme.RING, Scheme.DOUBLING, Scheme.FACTORS, Scheme.ROWS, Scheme.POWER_SGD)
_FIRST_FUSE_BYTES = 8_000_000.0

Able = Callable[[Described, Scheme], bool]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a user asks of plans.

    bandwidth    of the links, if they are not to be measured: `1gbit`
    power_rank   of what is asked to travel by powersgd
    """

    schemes: tuple[tuple[str, str], ...] = ()
    wire: str = "fp32"
    bandwidth: str | None = None
    power_rank: int = 2

    def check(self, structure: Structure) -> None:
        """Raises what cannot be met. Only when a model is wrapped: what turns out later must not end the training."""
        for pattern, text in self.schemes:
            scheme = parse_scheme(text)
            if scheme not in SCHEMES[1:]:
                ways = ", ".join(way.value for way in SCHEMES[1:])
                raise UsageError(f"schemes[{pattern!r}] is one of {ways} in Parallel, got {text!r}")
            matched = _matching(structure, pattern)
            if not matched:
                known = ", ".join(list(structure.params)[:8])
                raise UsageError(f"schemes: no parameter that learns matches {pattern!r}; there are {known}, …")
            if not any(self._can(param, scheme) for param in matched):
                why = next((f": {param.why_dense}" for param in matched if param.why_dense), "")
                raise UsageError(f"schemes: nothing that matches {pattern!r} can travel by {scheme.value}{why}")

    def overrides(self, structure: Structure, able: Able | None = None) -> tuple[Override, ...]:
        """By parameter. A pattern stands for those of the parameters it matches that can travel so."""
        able = able or self._can
        found = [Override(name, Scheme.ROWS) for name, param in structure.params.items() if _must_be_rows(param)]
        for pattern, text in self.schemes:
            scheme = parse_scheme(text)
            found += [Override(p.name, scheme) for p in _matching(structure, pattern) if able(p, scheme)]
        return tuple(found)

    def approximated(self, structure: Structure) -> dict[str, FactorShape]:
        """By parameter that is asked to travel by powersgd: its matrix, and the rank."""
        found: dict[str, FactorShape] = {}
        for override in self.overrides(structure):
            shape = structure.params[override.pattern].parameter.shape
            found.pop(override.pattern, None)
            if override.scheme is Scheme.POWER_SGD:
                found[override.pattern] = FactorShape(self.power_rank, shape[0], math.prod(shape[1:]))
        return found

    def _can(self, found: Described, scheme: Scheme) -> bool:
        if scheme is Scheme.FACTORS:
            return found.factors
        if scheme is Scheme.ROWS:
            return found.rows
        if scheme is Scheme.POWER_SGD:
            value = found.parameter
            sides = (len(value), value.numel() // len(value)) if value.dim() > 1 else (0, 0)
            return not found.sparse and value.is_contiguous() and min(sides) > self.power_rank
        return not found.sparse

    def request(self, structure: Structure, profile: NetProfile) -> PlanRequest:
        """For a model that was measured: what it does may be less than it seemed able to."""
        known = {param.name: param for param in profile.params}

        def able(found: Described, scheme: Scheme) -> bool:
            param = known[found.name]
            has = {
                Scheme.FACTORS: param.factors is not None,
                Scheme.ROWS: param.rows is not None,
                Scheme.POWER_SGD: param.power is not None,
            }
            return self._can(found, scheme) and has.get(scheme, True)

        return PlanRequest(wire=self.wire, overrides=self.overrides(structure, able), among=SCHEMES)


def first_plan(structure: Structure, num_workers: int, wire: str) -> Agreed:
    """Good enough to measure with."""
    params = []
    for found in structure.params.values():
        shape = tuple(found.parameter.shape)
        rows = RowShape(1, shape[1], shape[0]) if found.rows else None
        params.append(
            ParamProfile(found.name, shape, found.parameter.element_size(), found.parameter.requires_grad, rows=rows)
        )
    layers = tuple(LayerProfile(param.name, 0.0, 0.0, (param.name,)) for param in params)
    tables = tuple(Override(p.name, Scheme.ROWS) for p in params if p.rows is not None and p.learns)
    request = PlanRequest(
        wire=wire,
        scheme=Scheme.RING,
        overrides=tables,
        fuse_bytes=(_FIRST_FUSE_BYTES,),
        chunk_bytes=(math.inf,),
        orders=(Order.READY,),
        among=SCHEMES,
    )
    cluster = Cluster((1,) * num_workers, bandwidth_bps=1e9)
    return Agreed(make_plan(NetProfile(layers, tuple(params), needs_all_gradients=True), cluster, request), {})


def plan_together(
    structure: Structure,
    measuring: Measuring,
    transport: Transport,
    table: Roundtable,
    wishes: Wishes,
    *,
    needs_all_gradients: bool,
    cluster: Cluster | None = None,
) -> Agreed:
    """The same plan on all workers, which call it together. Those that had no data while the others measured (Join)
    have nothing to say; the first of the others makes it. `cluster`: if it is known already."""
    counts = table.gather(torch.tensor([measuring.has_seen, *measuring.num_rows.values()], dtype=torch.int64))
    author = int(counts[:, 0].argmax())
    rows_of = dict(zip(measuring.num_rows, counts[:, 1:].amax(0).tolist(), strict=True))
    seconds = table.sum(torch.tensor(measuring.seconds(), dtype=torch.float64)) / max(1, int(counts[:, 0].sum()))
    profile = profile_of(structure, measuring, seconds.tolist(), rows_of, needs_all_gradients=needs_all_gradients)
    profile = _approximated(profile, wishes.approximated(structure))
    known = cluster or _cluster(profile, structure, transport, table, wishes)
    made = attempt(table, lambda: make_plan(profile, known, wishes.request(structure, profile)), by=author)
    own = "" if made is None else json.dumps({"plan": made.to_json(), "num_rows": _num_rows(profile)})
    told = json.loads(table.gather_texts(own)[author])  # ranks may have seen different branches: one view counts
    return Agreed(CommPlan.from_json(told["plan"]), told["num_rows"], wishes.power_rank)


def _approximated(profile: NetProfile, shapes: Mapping[str, FactorShape]) -> NetProfile:
    """What travels by its strongest directions is one matrix, without factors and without a bias riding on it."""
    params = []
    for param in profile.params:
        if param.name in shapes:
            param = replace(param, factors=None, rows=None, power=shapes[param.name])
        elif param.rides_with in shapes:
            param = replace(param, rides_with=None)
        params.append(param)
    return replace(profile, params=tuple(params))


def _num_rows(profile: NetProfile) -> dict[str, int]:
    return {param.name: param.factors.rows for param in profile.params if param.factors is not None}


def _cluster(
    profile: NetProfile, structure: Structure, transport: Transport, table: Roundtable, wishes: Wishes
) -> Cluster:
    like = next(found.parameter for found in structure.params.values() if found.parameter.requires_grad)
    own = [product_flops(profile, table.size, like.device, like.dtype), *exchange_seconds(table, like.device)]
    figures = torch.tensor([0.0 if math.isinf(own[0]) else own[0], *own[1:]], dtype=torch.float64)
    flops, send_s, collective_s = (table.sum(figures) / table.size).tolist()
    cluster = Cluster((1,) * table.size, 1.0, send_s=send_s, collective_s=collective_s, flops=flops or math.inf)
    if wishes.bandwidth is not None:
        bandwidth_bps = parse_bandwidth(wishes.bandwidth) * PAYLOAD_SHARE
        return replace(cluster, bandwidth_bps=bandwidth_bps, latency_s=DEFAULT_LATENCY_S)
    return replace(cluster, **probe(transport).figures())


def _matching(structure: Structure, pattern: str) -> list[Described]:
    """The parameters that learn whose names, or modules' names, match."""
    learning = (param for param in structure.params.values() if param.parameter.requires_grad)
    return [
        param
        for param in learning
        if fnmatch.fnmatchcase(param.name, pattern) or fnmatch.fnmatchcase(param.name, f"{pattern}.*")
    ]


def _must_be_rows(found: Described) -> bool:
    return found.sparse and found.parameter.requires_grad
