"""The simulator against a slow one, and against schedules worked out by hand."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from poseidon.errors import PlanError
from poseidon.plan import (
    Cluster,
    FactorShape,
    LayerProfile,
    NetProfile,
    Order,
    Override,
    ParamProfile,
    PlanRequest,
    Scheme,
    make_plan,
    simulate,
)
from tests.plan.slow_simulator import SlowSimulator
from tests.plan.strategies import clusters, profiles

MB = 1_000_000


@st.composite
def forced(draw, profile: NetProfile) -> PlanRequest:
    """One layout, and a random scheme for every parameter that could have several."""
    overrides = []
    for param in profile.params:
        if param.learns and param.rides_with is None:
            ways = [Scheme.RING, Scheme.DOUBLING, Scheme.SERVER]
            ways += [Scheme.FACTORS, Scheme.FACTOR_SERVER] if param.factors else []
            ways += [Scheme.ROWS] if param.rows else []
            overrides.append(Override(param.name, draw(st.sampled_from(ways))))
    return PlanRequest(
        wire=draw(st.sampled_from(["fp32", "bf16"])),
        overrides=tuple(overrides),
        in_flight=draw(st.integers(1, 4)),
        fuse_bytes=(draw(st.sampled_from([0, 1000, MB])),),
        chunk_bytes=(draw(st.sampled_from([2e5, MB, float("inf")])),),
        orders=(draw(st.sampled_from(list(Order))),),
    )


@settings(max_examples=100, deadline=None)
@given(st.data(), profiles(max_layers=6), clusters(one_worker_per_node=True))
def test_steady_state_is_what_a_slow_simulator_finds(data, profile, cluster):
    assume(cluster.num_workers > 1)
    plan = make_plan(profile, cluster, data.draw(forced(profile)))
    slow = SlowSimulator(plan, profile)
    third_iteration_s = slow.run(4)
    assert plan.iteration_s == pytest.approx(third_iteration_s, rel=1e-9, abs=1e-12)
    assert simulate(plan, profile).iteration_s == plan.iteration_s


def chain(*layers: tuple[float, float, int], barrier: bool = False) -> NetProfile:
    """Layers of (forward seconds, backward seconds, kilobytes of one parameter)."""
    params = tuple(ParamProfile(f"p{i}", (kb * 250,)) for i, (_, _, kb) in enumerate(layers))
    timed = tuple(LayerProfile(f"l{i}", f, b, (f"p{i}",)) for i, (f, b, _) in enumerate(layers))
    return NetProfile(timed, params, barrier)


# Two nodes send each kilobyte in a millisecond: an all-reduce of n bytes sends n bytes.
SLOW_LINK = Cluster((1, 1), bandwidth_bps=8e6, latency_s=0.0, send_s=0.0)
ONE_BY_ONE = PlanRequest(fuse_bytes=(0,), chunk_bytes=(float("inf"),), orders=(Order.READY,), in_flight=1)


def spans(timeline, kind: str, iteration: int = 0) -> list[tuple[int, float, float]]:
    """(index, start, end) in milliseconds, counted from the start of the iteration's backward pass."""
    start = min(event.start_s for event in timeline.of("backward", iteration))
    return [
        (e.index, round(1e3 * (e.start_s - start), 6), round(1e3 * (e.end_s - start), 6))
        for e in timeline.of(kind, iteration)
    ]


class TestByHand:
    def test_exchange_hidden_behind_backward_and_forward(self):
        profile = chain((0.010, 0.020, 1), (0.010, 0.020, 10))
        plan = make_plan(profile, SLOW_LINK, ONE_BY_ONE)
        timeline = simulate(plan, profile)
        assert spans(timeline, "backward") == [(1, 0, 20), (0, 20, 40)]
        assert spans(timeline, "ready") == [(1, 20, 20), (0, 40, 40)]
        assert spans(timeline, "send") == [(1, 20, 30), (0, 40, 41)]
        start = min(e.start_s for e in timeline.of("backward", 0))
        forward = [(e.index, round(1e3 * (e.start_s - start), 6)) for e in timeline.of("forward", 1)]
        assert forward == [(0, 41), (1, 51)]  # only the first layer's own exchange cannot be hidden
        assert plan.iteration_s == pytest.approx(0.061)

    def test_needed_order_lets_the_first_layer_overtake(self):
        """Layer 1 has 100 ms on the link; in READY order layer 0 waits behind all of it."""
        profile = chain((0.010, 0.020, 1), (0.010, 0.020, 100))
        ready = make_plan(profile, SLOW_LINK, ONE_BY_ONE)
        assert ready.iteration_s == pytest.approx(0.020 + 0.100 + 0.001 + 0.010 + 0.010)
        pieces = PlanRequest(fuse_bytes=(0,), chunk_bytes=(10_000,), orders=(Order.NEEDED,), in_flight=1)
        needed = make_plan(profile, SLOW_LINK, pieces)
        # ready at 20; two of ten pieces until 40; then layer 0's, then the other eight until 121; forward 0 until 51
        assert needed.iteration_s == pytest.approx(0.121 + 0.010)
        assert [send.unit for send in needed.order] == [1] * 2 + [0] + [1] * 8

    def test_latencies_overlap_and_bytes_do_not(self):
        profile = chain((0.0, 0.0, 1), (0.0, 0.0, 1), (0.0, 0.0, 1))
        cluster = Cluster((1, 1), bandwidth_bps=8e6, latency_s=0.010, send_s=0.0)  # two steps: 20 ms
        together = make_plan(profile, cluster, PlanRequest(scheme=Scheme.RING, fuse_bytes=(0,), in_flight=3))
        # Of each one's steps, a quarter of its bytes' time passes beside them.
        assert together.iteration_s == pytest.approx(0.003 + 0.020 - 0.00025)
        alone = make_plan(profile, cluster, PlanRequest(scheme=Scheme.RING, fuse_bytes=(0,), in_flight=1))
        assert alone.iteration_s == pytest.approx(3 * (0.021 - 0.00025))

    def test_overhead_holds_the_link(self):
        profile = chain((0.0, 0.0, 1), (0.0, 0.0, 1))
        cluster = Cluster((1, 1), bandwidth_bps=8e6, latency_s=0.0, overhead_s=0.005, send_s=0.0)
        plan = make_plan(profile, cluster, PlanRequest(scheme=Scheme.RING, fuse_bytes=(0,)))
        assert plan.iteration_s == pytest.approx(2 * math.hypot(0.010, 0.001))

    @pytest.mark.parametrize(("kb", "scheme"), [(1, Scheme.DOUBLING), (27, Scheme.DOUBLING), (28, Scheme.RING)])
    def test_small_units_go_in_pairs(self, kb, scheme):
        """8 workers, 10 ms a message, 1 kB a millisecond, bytes counted twice: 3 rounds, which count as 6
        messages, and 6 times the bytes against 14 messages and 3.5 times, of which a quarter of the bytes' time passes
        beside: the same at 27.3 kB."""
        cluster = Cluster((1,) * 8, bandwidth_bps=8e6, latency_s=0.010, send_s=0.0)
        plan = make_plan(chain((0.0, 0.0, kb)), cluster, PlanRequest(chunk_bytes=(float("inf"),)))
        assert plan.units[0].scheme is scheme
        expected_s = {Scheme.DOUBLING: 0.060 + 3e-3 * kb, Scheme.RING: 0.140 + 0.75 * 1.75e-3 * kb}[scheme]
        assert plan.iteration_s == pytest.approx(expected_s)

    def test_rebuilding_fills_the_wait_for_something_else(self):
        """fc arrives at 5 ms and takes 4 ms to rebuild, while forward waits until 24 ms for layer 0."""
        layers = (LayerProfile("l0", 0.002, 0.010, ("p",)), LayerProfile("fc", 0.002, 0.001, ("w",)))
        params = (ParamProfile("p", (2500,)), ParamProfile("w", (100, 100), factors=FactorShape(5, 100, 100)))
        profile = NetProfile(layers, params)
        cluster = Cluster((1, 1), bandwidth_bps=8e6, latency_s=0.0, send_s=0.0, flops=2 * 5 * 100 * 100 / 0.004)
        plan = make_plan(profile, cluster, PlanRequest(scheme=Scheme.FACTORS, fuse_bytes=(0,)))
        timeline = simulate(plan, profile)
        assert spans(timeline, "send") == [(1, 1, 5), (0, 11, 21)]
        assert spans(timeline, "apply") == [(1, 11, 15)]
        assert plan.iteration_s == pytest.approx(0.021 + 0.002 + 0.002)

    def test_barrier_holds_every_update_until_all_are_there(self):
        free = make_plan(chain((0.010, 0.020, 1), (0.010, 0.020, 100)), SLOW_LINK, ONE_BY_ONE)
        profile = chain((0.010, 0.020, 1), (0.010, 0.020, 100), barrier=True)
        request = PlanRequest(
            scheme=Scheme.RING, fuse_bytes=(0,), chunk_bytes=(1e4,), orders=(Order.NEEDED,), in_flight=1
        )
        held = make_plan(profile, SLOW_LINK, request)
        assert held.barrier
        assert not free.barrier
        timeline = simulate(held, profile)
        last = max(event.end_s for event in timeline.of("send", 0))
        assert min(event.start_s for event in timeline.of("forward", 1)) == pytest.approx(last)
        assert held.iteration_s == pytest.approx(0.121 + 0.020)

    def test_barrier_holds_pulls(self):
        """Half of SERVER's bytes wait for the barrier, and forward then waits per layer again."""
        profile = chain((0.010, 0.020, 2), (0.010, 0.020, 20), barrier=True)
        request = PlanRequest(scheme=Scheme.SERVER, fuse_bytes=(0,), orders=(Order.READY,), in_flight=1)
        timeline = simulate(make_plan(profile, SLOW_LINK, request), profile)
        assert spans(timeline, "send") == [(1, 20, 30), (0, 40, 41)]
        assert spans(timeline, "pull") == [(1, 41, 51), (0, 51, 52)]
        assert timeline.iteration_s == pytest.approx(0.052 + 0.020)

    def test_iterations_follow_each_other(self):
        profile = chain((0.010, 0.020, 1), (0.010, 0.020, 100))
        timeline = simulate(make_plan(profile, SLOW_LINK, ONE_BY_ONE), profile, num_iterations=3)
        starts = [min(e.start_s for e in timeline.of("backward", i)) for i in range(3)]
        assert starts[0] == pytest.approx(0.020)
        assert [b - a for a, b in pairwise(starts)] == pytest.approx([timeline.iteration_s] * 2)
        assert len(timeline.of("forward")) == 2 * 4  # with the pass that ends the last exchanges
        assert sorted(timeline.events, key=lambda e: e.start_s) == list(timeline.events)

    def test_passes_between_count_once(self):
        profile = chain((0.010, 0.020, 1))
        longer = NetProfile(profile.layers, profile.params, between_s=0.5)
        assert make_plan(longer, SLOW_LINK).iteration_s == pytest.approx(
            make_plan(profile, SLOW_LINK).iteration_s + 0.5
        )


@settings(max_examples=50, deadline=None)
@given(profiles(), clusters())
def test_events_are_consistent(profile, cluster):
    """The device does one thing at a time; nothing is sent before it is ready or read before it is applied."""
    assume(cluster.num_workers > 1)
    plan = make_plan(profile, cluster, PlanRequest(fuse_bytes=(0, MB), chunk_bytes=(2e5, MB)))
    timeline = simulate(plan, profile, num_iterations=2)
    device = [e for e in timeline.events if e.kind in ("forward", "backward", "apply") and e.end_s > e.start_s]
    assert all(b.start_s >= a.end_s - 1e-9 for a, b in pairwise(device))
    for iteration in range(2):
        ready = {e.index: e.start_s for e in timeline.of("ready", iteration)}
        over: dict[int, float] = defaultdict(float)
        for event in timeline.of("send", iteration) + timeline.of("pull", iteration) + timeline.of("apply", iteration):
            assert event.start_s >= ready[event.index] - 1e-9
            over[event.index] = max(over[event.index], event.end_s)
        reads = {event.name: event.start_s for event in timeline.of("forward", iteration + 1)}
        unit_of = plan.unit_of()
        for layer in profile.layers:
            for name in layer.params:
                assert reads[layer.name] >= over[unit_of[name].index] - 1e-9


def test_plan_of_another_net_is_refused():
    plan = make_plan(chain((0.01, 0.01, 1)), SLOW_LINK)
    with pytest.raises(PlanError, match="the plan is for another net; in the net only: p1"):
        simulate(plan, chain((0.01, 0.01, 1), (0.01, 0.01, 1)))
