"""Planner: the plan with the shortest predicted iteration (`search.py`), and how many of its sends are on their way.

    one         where compute hides nearly all: what is needed first shall have the link to itself
    two         where the network is what is waited for: sends as for one at a time, of which the next begins before the
                last worker is through with the one before
    several     where that should be much faster still: few bytes and long ways. Sends are then cut for it

Same input, same plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poseidon.plan.bundles import bundles_of
from poseidon.plan.cluster import Cluster
from poseidon.plan.commplan import GPI, CommPlan, Scheme, Send, Unit
from poseidon.plan.profile import NetProfile, ParamProfile
from poseidon.plan.request import PlanRequest
from poseidon.plan.search import Search
from poseidon.plan.simulate import simulate

# Between one send and the next there are milliseconds in which workers that are through wait for those that are not; a
# second send uses them. Measured with one and two on their way, cut alike, in seconds: on 4 hosts with 1 Gbit/s a
# transformer 1.96 and 1.92, ResNet-18 0.598 and 0.587, a model with large tables 0.047 and 0.041; on 8 hosts ResNet-50
# 1.459 and 1.449, VGG-19 1.519 and 1.510. Cut as the model would have it for two, some gain and some lose.
# Where compute hides nearly all, sends that share the link only delay what is needed first: AlexNet 0.52 and 0.56.
NUM_IN_PAIR = 2

MOST_IN_FLIGHT = 4
# More sends hide each other's latencies, and lengthen the queues that all their messages stand in, which the model does
# not know: on 8 hosts with 1 Gbit/s, four on their way took 9 to 32 % longer than predicted, two 0 to 4 %.
WORTH_SHARING = 1.2


def make_plan(profile: NetProfile, cluster: Cluster, request: PlanRequest | None = None) -> CommPlan:
    """The best plan found for a net on a cluster."""
    request = request or PlanRequest()
    if request.in_flight is not None:
        return _plan(profile, cluster, request)
    if request.pattern == GPI:
        return _plan(profile, cluster, replace(request, in_flight=MOST_IN_FLIGHT))
    alone = _plan(profile, cluster, replace(request, in_flight=1))
    if alone.iteration_s <= profile.compute_s * WORTH_SHARING:
        return alone
    pair = replace(alone, in_flight=NUM_IN_PAIR)
    pair = replace(pair, iteration_s=simulate(pair, profile).iteration_s)
    shared = _plan(profile, cluster, replace(request, in_flight=MOST_IN_FLIGHT))
    return shared if shared.iteration_s * WORTH_SHARING < pair.iteration_s else pair


def _plan(profile: NetProfile, cluster: Cluster, request: PlanRequest) -> CommPlan:
    assert request.in_flight is not None
    parts = bundles_of(profile, alone=cluster.num_workers == 1)
    search = Search(profile, cluster, request, parts.travelling)
    best = search.best()
    if request.cuts_single:
        best = search.refined(best)
    units = [search.unit(index, draft, best) for index, draft in enumerate(best.drafts)]
    if parts.local:
        units.append(_local_unit(len(units), parts.local, alone=cluster.num_workers == 1))
    return CommPlan(
        units=tuple(units),
        order=tuple(Send(piece.unit, piece.start, piece.stop) for piece in best.order),
        barrier=profile.needs_all_gradients,
        cluster=cluster,
        wire=request.wire,
        in_flight=request.in_flight,
        iteration_s=best.iteration_s,
        compute_s=profile.compute_s,
        pattern=request.pattern,
    )


def _local_unit(index: int, params: Sequence[ParamProfile], *, alone: bool) -> Unit:
    return Unit(
        index=index,
        params=tuple(param.name for param in params),
        shapes=tuple(param.shape for param in params),
        num_elems=sum(param.num_elems for param in params),
        scheme=Scheme.LOCAL,
        dense_bytes=0,
        factor_bytes=None,
        bytes_sent=0,
        seconds=0.0,
        reason="one worker has nobody to exchange with" if alone else "does not learn",
    )
