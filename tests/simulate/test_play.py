"""Plans played: closed forms of small nets, one worker for all against every worker, and what must hold of any play."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from poseidon.errors import UsageError
from poseidon.plan import (
    Cluster,
    CommPlan,
    FactorShape,
    LayerProfile,
    NetProfile,
    Order,
    ParamProfile,
    PlanRequest,
    Scheme,
    make_plan,
)
from poseidon.plan.commplan import GPI
from poseidon.plan.turns import MOST_LATE, NUM_APPLYING, num_finishers
from poseidon.simulate import Happening, Machines, Manner, Straggler, play
from poseidon.simulate.agenda import Agenda
from poseidon.simulate.flock import Flock
from poseidon.simulate.play import compute_factors
from tests.plan.known_nets import profile_of, vgg19
from tests.plan.strategies import clusters, profiles

ONE_BY_ONE = Manner(one_for_all=False, waves=False)
WAVES = Manner(one_for_all=False, waves=True)


def net(*layers: tuple[float, float, int], barrier: bool = False) -> NetProfile:
    """Layers of (forward_s, backward_s, elements of a dense parameter)."""
    params = tuple(ParamProfile(f"l{i}/0", (size,)) for i, (_, _, size) in enumerate(layers) if size)
    return NetProfile(
        tuple(LayerProfile(f"l{i}", f, b, (f"l{i}/0",) if size else ()) for i, (f, b, size) in enumerate(layers)),
        params,
        barrier,
    )


def ring_plan(profile: NetProfile, cluster: Cluster, scheme: Scheme = Scheme.RING, **asked) -> CommPlan:
    request = PlanRequest(scheme=scheme, among=(scheme,), fuse_bytes=(0,), chunk_bytes=(float("inf"),), **asked)
    return make_plan(profile, cluster, request)


def heard(plan, profile, machines, iterations=3, manner=Manner()) -> dict[int, list[Happening]]:  # noqa: B008
    events: dict[int, list[Happening]] = {}
    play(
        plan,
        profile,
        machines,
        iterations,
        lambda rank: lambda who, what: events.setdefault(who, []).append(what),
        manner,
    )
    return events


# -- closed forms -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("num_workers", [2, 3, 8])
def test_nothing_hides_the_exchange_of_a_single_layer(num_workers):
    """forward + backward + all-reduce, whose pieces hide α but once, + update."""
    num_elems, update_bps = 4_000_000, 1e10
    cluster = Cluster((1,) * num_workers, 1e9, 1e-3, send_s=0.0, update_bps=update_bps)
    profile = net((0.01, 0.02, num_elems))
    ring_s = 2 * (num_workers - 1) / num_workers * num_elems * 4 * 8 / 1e9 + 1e-3
    played = play(ring_plan(profile, cluster), profile, Machines(cluster), 3)
    assert played.steady_s == pytest.approx(0.03 + ring_s + num_elems * 32 / update_bps)
    assert played.waited_s == pytest.approx(played.steady_s - 0.03)


def test_the_last_layers_exchange_hides_behind_the_others():
    """Layer 1's unit is ready first, and is needed last: what it takes beyond that time, forward waits for."""
    cluster = Cluster((1, 1), 1e9, 0.0, send_s=0.0)
    profile = net((0.1, 0.2, 0), (0.05, 0.1, 12_500_000))
    plan = ring_plan(profile, cluster)  # 0.4 s on the link
    played = play(plan, profile, Machines(cluster), 3)
    hidden_s = 0.2 + 0.1  # backward and forward of layer 0
    assert played.steady_s == pytest.approx(0.45 + (0.4 - hidden_s))


def test_a_server_pushes_updates_and_pulls():
    num_elems, num_workers = 1_000_000, 4
    cluster = Cluster((1,) * num_workers, 1e9, 0.0, send_s=0.0, update_bps=1e9)
    profile = net((0.0, 0.01, num_elems))
    leg_s = 3 / 4 * num_elems * 32 / 1e9
    played = play(ring_plan(profile, cluster, Scheme.SERVER), profile, Machines(cluster), 3)
    # A part pulled is passed on when it is whole: the last is a piece later.
    assert played.steady_s == pytest.approx(0.01 + 2 * leg_s + num_elems * 32 / num_workers / 1e9, rel=0.02)


def test_the_link_is_not_kept_while_an_update_waits_for_the_device():
    """Both units are pushed while the device is at layer 0; then both are updated, and pulled, one after the other. A
    Send that kept its place would have the second pushed after the first was pulled."""
    num_elems, num_workers = 1_000_000, 4
    cluster = Cluster((1,) * num_workers, 1e9, 0.0, send_s=0.0, update_bps=1e12)
    profile = net((0.0, 0.3, 0), (0.0, 0.01, num_elems), (0.0, 0.01, num_elems))
    plan = ring_plan(profile, cluster, Scheme.SERVER, in_flight=1)
    leg_s = 3 / 4 * num_elems * 32 / 1e9
    assert plan.iteration_s == pytest.approx(0.32 + 2 * leg_s, rel=1e-3)
    assert play(plan, profile, Machines(cluster), 3).steady_s == pytest.approx(0.32 + 2 * leg_s, rel=0.02)


def test_so_many_updates_wait_for_the_device_and_no_more():
    """Each waits on a finisher of its own; when all of them do, nobody sees that another push has arrived."""
    num_elems, num_workers, num_sends = 100_000, 4, 1 + NUM_APPLYING + 3 * MOST_LATE
    cluster = Cluster((1,) * num_workers, 1e9, 0.0, send_s=0.0, update_bps=1e12)
    profile = net((0.0, 0.3, 0), *[(0.0, 0.0, num_elems)] * num_sends)
    plan = ring_plan(profile, cluster, Scheme.SERVER, in_flight=1, orders=(Order.READY,))
    (events,) = heard(plan, profile, Machines(cluster)).values()
    pushes = [e for e in events if e.kind == "move" and not e.is_pull and e.iteration == 0]
    assert num_finishers(plan) == 1 + MOST_LATE + NUM_APPLYING
    assert sum(e.end_s < 0.3 for e in pushes) == num_finishers(plan)
    assert sum(e.start_s < 0.3 for e in pushes) == num_finishers(plan) + 1 + MOST_LATE  # patience was lost with those


def test_factors_are_gathered_and_rebuilt_everywhere():
    rows, outputs, inputs, num_workers = 32, 2000, 3000, 4
    weight = ParamProfile("fc/0", (outputs, inputs), factors=FactorShape(rows, outputs, inputs))
    profile = NetProfile((LayerProfile("fc", 0.0, 0.02, ("fc/0",)),), (weight,))
    cluster = Cluster((1,) * num_workers, 1e9, 0.0, send_s=0.0, flops=1e12)
    played = play(ring_plan(profile, cluster, Scheme.FACTORS), profile, Machines(cluster), 3)
    gather_s = (num_workers - 1) * rows * (outputs + inputs) * 32 / 1e9
    rebuild_s = 2 * (num_workers - 1) * rows * outputs * inputs / 1e12
    assert played.steady_s == pytest.approx(0.02 + gather_s + rebuild_s)


def test_putting_rows_of_factors_together_takes_processors():
    rows, outputs, inputs = 32, 2000, 3000
    weight = ParamProfile("fc/0", (outputs, inputs), factors=FactorShape(rows, outputs, inputs))
    profile = NetProfile((LayerProfile("fc", 0.0, 0.02, ("fc/0",)),), (weight,))
    cluster = Cluster((1, 1), 1e9, 0.0, send_s=0.0)
    plan = ring_plan(profile, cluster, Scheme.FACTORS)
    plain, slow = (play(plan, profile, Machines(cluster, handling_bps=bps), 3).steady_s for bps in (math.inf, 1e10))
    assert slow - plain >= 2 * rows * (outputs + inputs) * 32 / 1e10


def test_one_worker_waits_for_nobody():
    cluster = Cluster((1,), 1e9)
    profile = net((0.01, 0.02, 1000), (0.0, 0.0, 10))
    played = play(make_plan(profile, cluster), profile, Machines(cluster), 4)
    assert played.iteration_s == ((pytest.approx(0.03),) * 4,)
    assert played.wait_s == ((0.0,) * 4,)
    assert played.bytes_sent == (0.0,)


def test_workers_of_one_node_exchange_through_memory():
    """Read all g, write the sum, all read it: (2 g + 1) · bytes, one Send after another."""
    cluster = Cluster((4,), 1e9, local_bps=1e9, send_s=0.0)
    profile = net((0.0, 0.01, 100_000))
    played = play(ring_plan(profile, cluster), profile, Machines(cluster), 3)
    assert played.steady_s == pytest.approx(0.01 + 9 * 100_000 * 32 / 1e9)
    assert played.bytes_sent == (0.0,)


def test_everybody_waits_for_a_straggler():
    """An all-reduce is over when the last one has taken part."""
    cluster = Cluster((1,) * 4, 1e12, 0.0, send_s=0.0)
    profile = net((0.1, 0.2, 1000))
    machines = Machines(cluster, stragglers=(Straggler(2, 3.0),))
    played = play(ring_plan(profile, cluster), profile, machines, 4)
    assert played.steady_s == pytest.approx(0.9, rel=1e-4)
    assert played.wait_s[2][2] == pytest.approx(0.0, abs=1e-4)
    assert played.wait_s[0][2] == pytest.approx(0.6, rel=1e-4)


def test_a_barrier_holds_every_update():
    cluster = Cluster((1, 1), 1e9, 0.0, send_s=0.0, update_bps=1e11)
    profile = net((0.01, 0.02, 100_000), (0.01, 0.02, 100_000), barrier=True)
    plan = ring_plan(profile, cluster)
    for events in heard(plan, profile, Machines(cluster), manner=ONE_BY_ONE).values():
        for iteration in range(3):
            moved_s = max(e.end_s for e in events if e.kind == "move" and e.iteration == iteration)
            updates = [e.start_s for e in events if e.kind == "update" and e.iteration == iteration]
            assert updates
            assert min(updates) >= moved_s


# -- jitter -----------------------------------------------------------------------------------------------------------
def test_jitter_is_what_it_says():
    machines = Machines(Cluster((1,) * 400, 1e9), jitter=0.2, stragglers=(Straggler(7, 2.0),), seed=5)
    factors = compute_factors(machines, 50)
    others = [factors[:, rank] for rank in range(400) if rank != 7]
    mean = sum(column.mean() for column in others) / 399
    spread = math.sqrt(sum(((column - 1) ** 2).mean() for column in others) / 399)
    assert mean == pytest.approx(1.0, abs=0.005)
    assert spread == pytest.approx(0.2, rel=0.03)
    assert factors[:, 7].mean() == pytest.approx(2.0, rel=0.1)
    assert (factors > 0).all()


def test_a_seed_gives_the_same_play_and_another_one_another():
    cluster = Cluster((1,) * 4, 1e9)
    profile = net((0.01, 0.02, 500_000), (0.01, 0.02, 500_000))
    plan = make_plan(profile, cluster)
    plays = [play(plan, profile, Machines(cluster, jitter=0.1, seed=seed), 4) for seed in (1, 1, 2)]
    assert plays[0] == plays[1]
    assert plays[0] != plays[2]
    longer = play(plan, profile, Machines(cluster, jitter=0.1, seed=1), 6)
    assert [worker[:4] for worker in longer.iteration_s] == list(map(tuple, plays[0].iteration_s))


# -- what must hold of any play ---------------------------------------------------------------------------------------
CALM = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)


@CALM
@given(profiles(), clusters())
def test_one_worker_stands_for_all(profile, cluster):
    """Where workers are alike, playing one of them or all of them gives the same times."""
    cluster = replace(cluster, node_workers=cluster.node_workers[:1] * cluster.num_nodes)
    plan = make_plan(profile, cluster)
    machines = Machines(cluster, handling_bps=3e9 if cluster.node_workers[0] == 1 else math.inf)
    one = play(plan, profile, machines, 3)
    if not one.is_one_for_all:
        assert any(unit.scheme is Scheme.DOUBLING for unit in plan.units)
        return
    every = play(plan, profile, machines, 3, manner=ONE_BY_ONE)
    for worker in every.iteration_s:
        assert worker == pytest.approx(one.iteration_s[0], rel=1e-9, abs=1e-12)
    # Waves may take turns at a processor in another order.
    waves = play(plan, profile, machines, 3, manner=WAVES)
    assert waves.steady_s == pytest.approx(one.steady_s, rel=0.05)


@CALM
@given(profiles(), clusters())
def test_waves_are_the_same_where_processors_cost_nothing(profile, cluster):
    cluster = replace(cluster, node_workers=(1,) * cluster.num_nodes, overhead_s=0.0)
    plan = make_plan(profile, cluster)
    one = play(plan, profile, Machines(cluster), 3)
    if one.is_one_for_all:
        waves = play(plan, profile, Machines(cluster), 3, manner=WAVES)
        for worker in waves.iteration_s:
            assert worker == pytest.approx(one.iteration_s[0], rel=1e-9, abs=1e-12)


@CALM
@given(profiles(), clusters(), st.integers(0, 3))
def test_bytes_and_time_add_up(profile, cluster, seed):
    """What is sent is received, and is what the plan says; no iteration is shorter than compute, or its bytes."""
    plan = make_plan(profile, cluster)
    machines = Machines(cluster, jitter=0.1 if seed else 0.0, seed=seed)
    played = play(plan, profile, machines, 3, manner=ONE_BY_ONE)
    assert sum(played.bytes_sent) == pytest.approx(sum(played.bytes_received))
    # The plan counts bytes; a message of a table's length, or of a bias, besides is small.
    assert max(played.bytes_sent) / 3 <= plan.bytes_sent * 1.02 + 64 * cluster.num_nodes * max(len(plan.units), 1) * 60
    assert max(played.bytes_sent) / 3 >= plan.bytes_sent * 0.98 - 1
    total_s = max(sum(worker) for worker in played.iteration_s)
    if not seed:
        assert total_s >= 3 * profile.compute_s * (1 - 1e-9)
    sent_before_the_end = max(played.bytes_sent) * 2 / 3
    assert total_s >= 8 * sent_before_the_end / cluster.bandwidth_bps * (1 - 1e-9)


@CALM
@given(profiles(), clusters())
def test_events_keep_their_order(profile, cluster):
    """Sends start in the plan's order, no more than so many at once; a layer computes when its units are done."""
    plan = make_plan(profile, cluster)
    events = heard(plan, profile, Machines(cluster, jitter=0.05, seed=1), manner=ONE_BY_ONE)
    chunks: dict[int, int] = {}
    order = []
    for send in plan.order:
        order.append((send.unit, chunks.get(send.unit, 0)))
        chunks[send.unit] = order[-1][1] + 1
    for own in events.values():
        for iteration in range(3):
            here = [event for event in own if event.iteration == iteration]
            pushes = sorted(
                (e for e in here if e.kind == "move" and not e.is_pull),
                key=lambda e: (e.start_s, order.index((e.index, e.chunk))),
            )
            assert [(e.index, e.chunk) for e in pushes] == order
            for push in pushes:
                on_way = [e for e in pushes if e.start_s <= push.start_s < e.end_s]
                assert len(on_way) <= plan.in_flight + MOST_LATE
            ends = {e.index: e.start_s for e in here if e.kind == "end"}
            assert set(ends) == {unit for unit, _ in order}
            ready = {e.index: e.start_s for e in here if e.kind == "ready"}
            assert all(ready[unit] <= ends[unit] for unit in ends)
            later = [e for e in own if e.kind == "forward" and e.iteration == iteration + 1]
            for layer in later:
                read = profile.layers[layer.index].params
                for unit in plan.units:
                    if unit.index in ends and set(unit.params) & set(read):
                        assert layer.start_s >= ends[unit.index]


@CALM
@given(profiles(max_layers=6), clusters(one_worker_per_node=True), st.integers(1, 5))
def test_waves_are_close_where_workers_are_not_alike(profile, cluster, seed):
    plan = make_plan(profile, cluster)
    machines = Machines(cluster, jitter=0.1, seed=seed)
    every = play(plan, profile, machines, 5, manner=ONE_BY_ONE)
    waves = play(plan, profile, machines, 5, manner=WAVES)
    assert waves.bytes_sent == pytest.approx(every.bytes_sent)
    assert waves.steady_s == pytest.approx(every.steady_s, rel=0.1, abs=2e-3)


# -- what cannot be played --------------------------------------------------------------------------------------------
def test_a_plan_for_other_nodes_is_refused():
    profile = net((0.01, 0.02, 1000))
    plan = make_plan(profile, Cluster((1, 1), 1e9))
    with pytest.raises(UsageError, match=r"the plan is for nodes of \[1, 1\] workers, the machines have \[2\]"):
        play(plan, profile, Machines(Cluster((2,), 1e9)), 3)


def test_notified_puts_are_refused():
    profile, cluster = net((0.01, 0.02, 1000)), Cluster((1, 1), 1e9)
    plan = make_plan(profile, cluster, PlanRequest(pattern=GPI))
    with pytest.raises(UsageError, match="not those of the pattern 'gpi'"):
        play(plan, profile, Machines(cluster), 3)


def test_no_iterations_are_refused():
    profile, cluster = net((0.01, 0.02, 1000)), Cluster((1, 1), 1e9)
    with pytest.raises(UsageError, match="at least 1 iteration"):
        play(make_plan(profile, cluster), profile, Machines(cluster), 0)


def test_a_thousand_workers_on_switches_take_seconds():
    """VGG19-22K on 1 024 workers with jitter, a straggler and uplinks that carry a fourth. Counted are things that
    happen and arrays that are gone through; a million of the first take some four seconds, a thousand of the second a
    quarter of one."""
    cluster = Cluster((1,) * 1024, 9.4e9, flops=6e12)
    profile = profile_of(vgg19(21841), 32, 0.925)
    sizes = PlanRequest(fuse_bytes=(4e6,), chunk_bytes=(float("inf"),))
    machines = Machines(cluster, 32, 4.0, jitter=0.05, stragglers=(Straggler(7, 1.5),), seed=1)
    plan = make_plan(profile, cluster, sizes)
    num_things = num_arrays = 0
    at, carry = Agenda.at, Flock._carry

    def counted_at(*given, **more):
        nonlocal num_things
        num_things += 1
        at(*given, **more)

    def counted_carry(*given):
        nonlocal num_arrays
        num_arrays += 1
        return carry(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Agenda, "at", counted_at)
        patch.setattr(Flock, "_carry", counted_carry)
        played = play(plan, profile, machines, 4)
    assert len(played.iteration_s) == 1024
    assert min(played.iteration_s[7]) >= 1.5 * 0.925 * 0.8  # jitter takes a fifth of it at most
    assert 0 < num_things < 1_000_000
    assert 0 < num_arrays < 20_000


def test_a_thousand_workers_that_differ():
    """Every worker of 1 024 is played, with jitter and stragglers, and ends where a bound says."""
    cluster = Cluster((1,) * 1024, 1e10, 1e-5)
    profile = net((0.02, 0.04, 200_000), (0.02, 0.04, 3_000_000))
    machines = Machines(cluster, jitter=0.02, stragglers=(Straggler(3, 1.5),), seed=1)
    plan = ring_plan(profile, cluster)
    played = play(plan, profile, machines, 2)
    assert len(played.iteration_s) == 1024
    slowest_s = max(worker[1] - waits[1] for worker, waits in zip(played.iteration_s, played.wait_s, strict=True))
    assert slowest_s == pytest.approx(0.18, rel=0.1)
    assert played.steady_s >= slowest_s
    plain = play(plan, profile, replace(machines, jitter=0.0, stragglers=()), 2)
    assert plain.is_one_for_all
    assert plain.steady_s < played.steady_s
