"""The plan of a starting job: one for all workers, measured or as told; a snapshot's where it still answers."""

from __future__ import annotations

import math

import pytest
import torch

from poseidon.errors import WorkersFailed
from poseidon.plan import Cluster, CommPlan, PlanRequest, Scheme, make_plan, parse_overrides
from poseidon.run.distribute import distribute
from poseidon.run.layer_times import estimated_times
from poseidon.run.planning import Links, Planned, Planning, plan_together
from poseidon.run.profile import profile_net
from poseidon.run.rates import measure_rates
from poseidon.run.roundtable import Roundtable
from poseidon.transport.inproc import run_workers
from tests.run.jobs import PROMPT, built, parameters, plan_for, solver_param
from tests.solver.small import net_text

TOLD = Links(bandwidth_bps=1e9, latency_s=1e-4)
SETTINGS = 'snapshot_prefix: "{}/snap"'


def planned(listing, *, size: int = 2, settings: str = "", **wishes) -> list[Planned]:
    """What each worker's plan is; `wishes` are Planning's."""
    planning = Planning(**{"request": PlanRequest(), "links": TOLD, "resume": "", "nodes": (0,) * size, **wishes})

    def work(transport):
        solver, _ = built(solver_param(net_text(listing), settings))
        return plan_together(solver, transport, Roundtable(transport), planning)

    return run_workers(size, work)


def snapshot_of(listing, tmp_path, *, size: int = 2, scheme: Scheme = Scheme.FACTORS) -> CommPlan:
    """The plan that a snapshot of so many workers, tmp_path/snap_iter_1, was taken with."""

    def work(transport):
        solver, _ = built(solver_param(net_text(listing), SETTINGS.format(tmp_path)))
        profile = profile_net(solver.net, estimated_times(solver.net, 1e9))
        cluster = Cluster((1,) * size, bandwidth_bps=TOLD.bandwidth_bps, latency_s=TOLD.latency_s)
        plan = make_plan(profile, cluster, PlanRequest(scheme=scheme))
        with distribute(solver, transport, plan, PROMPT):
            solver.step(1)
            solver.snapshot()
        return plan

    return run_workers(size, work)[0]


# -- making one -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [2, 3])
def test_all_workers_have_one_plan(listing, size):
    plans = planned(listing, size=size)
    assert len({found.plan.digest() for found in plans}) == 1
    plan = plans[0].plan
    assert plan.cluster.num_workers == size
    assert (plan.cluster.bandwidth_bps, plan.cluster.latency_s) == (1e9, 1e-4)
    assert plan.compute_s > 0
    assert math.isfinite(plan.cluster.flops)
    assert math.isfinite(plan.cluster.update_bps)
    assert plan.cluster.send_s > 0
    assert {name for unit in plan.units for name in unit.params} == {"fc1/0", "fc1/1", "fc2/0", "fc2/1"}
    assert not plans[0].is_saved
    assert plans[0].links == "as told"


def test_links_are_measured_unless_told(listing):
    found = planned(listing, links=Links())[0]
    assert found.links == "measured"
    assert found.plan.cluster.bandwidth_bps > 1e6
    assert found.plan.cluster.latency_s > 0
    found = planned(listing, links=Links(latency_s=0.5))[0]
    assert found.links == "bandwidth measured, latency as told"
    assert found.plan.cluster.latency_s == 0.5


def test_a_bandwidth_alone_goes_with_the_usual_latency(listing):
    cluster = planned(listing, links=Links(bandwidth_bps=1e8))[0].plan.cluster
    assert (cluster.bandwidth_bps, cluster.latency_s) == (1e8, 1e-4)


@pytest.mark.parametrize("scheme", [Scheme.RING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER])
def test_schemes_that_are_asked_for(listing, scheme):
    plan = planned(listing, request=PlanRequest(scheme=scheme))[0].plan
    assert {unit.scheme for unit in plan.units} == {scheme}
    request = PlanRequest(scheme=scheme, overrides=parse_overrides("fc2=ring"), wire="bf16")
    plan = planned(listing, request=request)[0].plan
    assert plan.unit_of()["fc2/0"].scheme is Scheme.RING
    assert plan.unit_of()["fc1/0"].scheme is scheme
    assert plan.wire == "bf16"


def test_a_wish_that_cannot_be_met_is_told_to_all_alike(listing):
    with pytest.raises(WorkersFailed, match=r"^no parameter that learns matches 'fc9'; parameters: fc1/0, fc2/0"):
        planned(listing, request=PlanRequest(overrides=parse_overrides("fc9=ring")))


def test_making_a_plan_leaves_the_solver_alone(listing):
    """The same training with and without a plan having been made before: measuring disturbs nothing."""

    def work(transport):
        results = []
        for plans in (False, True):
            solver, _ = built(solver_param(net_text(listing, shuffle=True, dropout=0.4), 'type: "Adam"'))
            if plans:
                planning = Planning(PlanRequest(), TOLD, "", (0, 0))
                plan_together(solver, transport, Roundtable(transport), planning)
            with distribute(solver, transport, plan_for(solver, 2, Scheme.RING), PROMPT):
                solver.step(5)
                results.append(parameters(solver))
        return results

    for without, with_plan in run_workers(2, work):
        assert all(torch.equal(a, b) for a, b in zip(without, with_plan, strict=True))


def test_rates_of_a_net_that_has_nothing_to_measure():
    net = 'layer { name: "d" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 } } }'
    net += 'layer { name: "l" type: "Power" bottom: "x" top: "y" loss_weight: 1 }'

    def work(transport):
        solver, _ = built(solver_param(net))
        profile = profile_net(solver.net, estimated_times(solver.net, 1e9))
        return measure_rates(solver, profile, Roundtable(transport))

    rates = run_workers(2, work)[0]
    assert (rates.flops, rates.update_bps) == (math.inf, math.inf)


# -- a snapshot's -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wishes", "is_saved"),
    [
        ({}, True),
        ({"request": PlanRequest(scheme=Scheme.FACTORS)}, True),
        ({"request": PlanRequest(overrides=parse_overrides("fc1=factors"))}, True),
        ({"links": Links()}, True),
        ({"request": PlanRequest(scheme=Scheme.RING)}, False),
        ({"request": PlanRequest(overrides=parse_overrides("fc2=server"))}, False),
        ({"request": PlanRequest(wire="fp16")}, False),
        ({"links": Links(bandwidth_bps=2e9)}, False),
        ({"links": Links(bandwidth_bps=1e9, latency_s=1e-3)}, False),
        ({"settings": "clip_gradients: 1"}, False),
    ],
)
def test_a_snapshots_plan_is_kept_if_it_answers_what_is_asked(listing, tmp_path, wishes, is_saved):
    saved = snapshot_of(listing, tmp_path)
    found = planned(listing, resume=str(tmp_path / "snap_iter_1.solverstate"), **wishes)
    assert [each.is_saved for each in found] == [is_saved] * 2
    assert (found[0].plan == saved) == is_saved
    assert found[0].plan == found[1].plan


def test_another_number_of_workers_gets_a_plan_of_its_own(listing, tmp_path):
    snapshot_of(listing, tmp_path)
    found = planned(listing, size=3, resume=str(tmp_path / "snap_iter_1.solverstate"))
    assert [each.is_saved for each in found] == [False] * 3


def test_a_snapshot_that_is_not_there_is_told_to_all(listing, tmp_path):
    with pytest.raises(WorkersFailed, match=r"snap_iter_7\.solverstate"):
        planned(listing, resume=str(tmp_path / "snap_iter_7.solverstate"))
