"""The plan of a job that is about to start: a snapshot's, if it still answers what is asked for, else one made from
what the workers measure together: their links, the seconds of their layers, the rates of their devices.

Where workers share a node's memory, the plan is one for such nodes; else every worker is a node of its own, and links
are measured that way. On a single node nothing crosses a network, and there is no link to measure.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import torch

from poseidon.errors import PlanError
from poseidon.plan import PAYLOAD_SHARE, Cluster, CommPlan, NetProfile, PlanRequest, Scheme, check_fits, make_plan
from poseidon.plan.bundles import bundles_of
from poseidon.plan.cluster import DEFAULT_LATENCY_S, DEFAULT_LOCAL_BPS
from poseidon.plan.request import allowed_schemes
from poseidon.run.attempt import attempt
from poseidon.run.layer_times import LayerTime, measured_times
from poseidon.run.profile import profile_net
from poseidon.run.rates import Rates, measure_rates
from poseidon.run.roundtable import Roundtable
from poseidon.run.spare_memory import give_back
from poseidon.run.worker_states import saved_plan
from poseidon.solver import Solver
from poseidon.transport import Transport
from poseidon.transport.probe import LinkFacts, probe, probe_memory


@dataclass(frozen=True, slots=True)
class Links:
    """What a user says about the links, instead of measuring them. `bandwidth_bps` is payload. `limit_bps` is what a
    worker may use of them, headers included; None: all."""

    bandwidth_bps: float | None = None
    latency_s: float | None = None
    limit_bps: float | None = None

    @property
    def source(self) -> str:
        """Where figures come from, for people."""
        if self.bandwidth_bps is None:
            return "measured" if self.latency_s is None else "bandwidth measured, latency as told"
        return "as told"

    def agree(self, cluster: Cluster) -> bool:
        """True if a plan for this cluster is one for these links."""
        if self.limit_bps is not None and cluster.bandwidth_bps > self.limit_bps * PAYLOAD_SHARE:
            return False
        return self.bandwidth_bps in (None, cluster.bandwidth_bps) and self.latency_s in (None, cluster.latency_s)


@dataclass(frozen=True, slots=True)
class Planning:
    """`request`, `links` and `resume` are what the user asks for; `nodes` tells which workers share a host, by rank."""

    request: PlanRequest
    links: Links
    resume: str
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """`is_saved`: the plan came with the snapshot; `links` says where its figures of the links are from."""

    plan: CommPlan
    is_saved: bool
    links: str


def plan_together(solver: Solver, transport: Transport, table: Roundtable, planning: Planning) -> Planned:
    """The same plan on all workers, which call it together; rank 0 makes it."""
    saved = attempt(table, lambda: saved_plan(planning.resume, table.size) if planning.resume else None)
    node_workers = _node_workers(transport)
    # On other nodes sums are taken in another order.
    fits_nodes = saved is not None and saved.cluster.node_workers == node_workers
    is_wanted = table.rank == 0 and saved is not None and fits_nodes and _is_wanted(saved, solver, planning)
    text = table.gather_texts(saved.to_json() if is_wanted and saved is not None else "")[0]
    if text:
        return Planned(CommPlan.from_json(text), True, "as when the plan was made")
    local_bps = probe_memory(transport) or DEFAULT_LOCAL_BPS
    links = _limited(_links(transport, planning, local_bps), planning.links, node_workers)
    times = _mean_times(measured_times(solver.net), table)
    profile = _profile(solver, times)
    rates = _mean_rates(measure_rates(solver, profile, table), table)
    give_back()
    cluster = replace(_cluster(links, rates, node_workers), local_bps=local_bps)
    made = attempt(table, lambda: make_plan(profile, cluster, planning.request), by=0)
    text = table.gather_texts(made.to_json() if made is not None else "")[0]
    source = "measured" if len(node_workers) == 1 else planning.links.source
    return Planned(CommPlan.from_json(text), False, source)


def _profile(solver: Solver, times: list[LayerTime]) -> NetProfile:
    param = solver.param
    return profile_net(solver.net, times, iter_size=param.iter_size, needs_all_gradients=param.clip_gradients >= 0)


# -- a snapshot's plan ------------------------------------------------------------------------------------------------
def _is_wanted(plan: CommPlan, solver: Solver, planning: Planning) -> bool:
    """True if a saved plan fits the net, and is one that could have come of what is asked for now."""
    profile = _profile(solver, [LayerTime() for _ in solver.net.graph.nodes])
    try:
        check_fits(plan, profile)
    except PlanError:  # the net or its solver has changed
        return False
    bundles = bundles_of(profile, alone=False).travelling
    units = plan.unit_of()
    chosen: list[Scheme] = [units[bundle.params[0].name].scheme for bundle in bundles]
    allowed = allowed_schemes(bundles, planning.request)
    is_asked = all(scheme in options for scheme, options in zip(chosen, allowed, strict=True))
    is_alike = (plan.wire, plan.pattern) == (planning.request.wire, planning.request.pattern)
    return is_asked and is_alike and planning.links.agree(plan.cluster)


# -- measuring --------------------------------------------------------------------------------------------------------
def _node_workers(transport: Transport) -> tuple[int, ...]:
    return (1,) * transport.size if transport.levels is None else transport.levels.node_workers


def _links(transport: Transport, planning: Planning, local_bps: float) -> LinkFacts:
    told = planning.links
    num_nodes = len(set(planning.nodes))
    if told.bandwidth_bps is not None:
        latency_s = DEFAULT_LATENCY_S if told.latency_s is None else told.latency_s
        return LinkFacts(transport.size, num_nodes, latency_s, told.bandwidth_bps, 0)
    if len(_node_workers(transport)) == 1:
        return LinkFacts(transport.size, 1, DEFAULT_LATENCY_S, local_bps, 0)
    measured = probe(transport, planning.nodes)
    return measured if told.latency_s is None else replace(measured, latency_s=told.latency_s)


def _limited(links: LinkFacts, told: Links, node_workers: tuple[int, ...]) -> LinkFacts:
    """With no more bandwidth than workers may use. A short measurement sees the burst that a limit allows, no more."""
    if told.limit_bps is None or len(node_workers) == 1:
        return links
    return replace(links, bandwidth_bps=min(links.bandwidth_bps, told.limit_bps * PAYLOAD_SHARE))


def _cluster(links: LinkFacts, rates: Rates, node_workers: tuple[int, ...]) -> Cluster:
    return Cluster(
        node_workers=node_workers,
        **links.figures(),
        send_s=rates.send_s,
        collective_s=rates.collective_s,
        flops=rates.flops,
        update_bps=rates.update_bps,
    )


def _mean_times(times: list[LayerTime], table: Roundtable) -> list[LayerTime]:
    (mean,) = table.mean([torch.tensor([[t.forward_s, t.backward_s] for t in times], dtype=torch.float64)])
    return [LayerTime(forward_s, backward_s) for forward_s, backward_s in mean.tolist()]


def _mean_rates(rates: Rates, table: Roundtable) -> Rates:
    (mean,) = table.mean([torch.tensor(astuple(rates), dtype=torch.float64)])
    return Rates(*mean.tolist())
