"""Who gets how many samples: against brute force, with injected times, and through a whole job."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poseidon.run.balance import EVERY, GAIN, Balance, better_parts, parts_for
from poseidon.run.distribute import DistributeOptions
from poseidon.run.meter import ClockFigures
from poseidon.run.roundtable import Roundtable
from poseidon.transport.inproc import run_workers
from tests.run.jobs import assert_alike, assert_close, built, in_team, parameters, picture_net, solver_param

RATES = st.lists(st.floats(0.05, 20), min_size=1, max_size=4)


def all_parts(num_workers, total):
    """Every way to deal out, at least one each."""
    for cuts in itertools.combinations(range(1, total), num_workers - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, total)))


@given(RATES, st.integers(0, 9))
def test_the_slowest_is_done_as_early_as_can_be(rates, more):
    total = len(rates) + more
    found = parts_for(rates, total)
    assert sum(found) == total
    assert min(found) >= 1
    best = min(max(n / rate for n, rate in zip(parts, rates, strict=True)) for parts in all_parts(len(rates), total))
    assert max(n / rate for n, rate in zip(found, rates, strict=True)) == pytest.approx(best)


def test_one_host_of_four_is_three_times_slower():
    parts = better_parts((64, 64, 64, 64), (0.1, 0.1, 0.1, 0.3))
    assert parts is not None
    assert sum(parts) == 256
    assert parts[3] == pytest.approx(256 / 10, abs=1)
    assert max(parts[:3]) - min(parts[:3]) <= 1


@given(st.lists(st.floats(1.0, GAIN - 1e-6), min_size=2, max_size=8))
def test_noise_of_less_than_the_gain_moves_nothing(noise):
    """Whatever the parts: no time lies more than 5 % above another."""
    assert better_parts((32,) * len(noise), noise) is None


def test_no_change_without_gain_although_speeds_differ():
    assert better_parts((2, 2), (1.0, 1.2)) is None  # 3 and 1 would be slower
    assert better_parts((2, 2), (1.0, 3.1)) == (3, 1)


def test_a_fixed_cost_besides_samples_is_found_step_by_step():
    """Seconds a + b·n: proportional parts are not right at once, but after a few looks all finish together."""
    fixed, each = (0.2, 0.05), (0.01, 0.03)
    parts = (50, 50)
    for _ in range(6):
        seconds = [a + b * n for a, b, n in zip(fixed, each, parts, strict=True)]
        parts = better_parts(parts, seconds) or parts
    seconds = [a + b * n for a, b, n in zip(fixed, each, parts, strict=True)]
    assert max(seconds) <= GAIN * min(seconds) + max(each)


def run_looks(times_by_iteration, every=4):
    """The parts after every iteration, on all workers; `times_by_iteration` are seconds per sample, by rank."""
    size = len(times_by_iteration[0])

    def work(transport):
        history = []
        balance = Balance(Roundtable(transport), (8,) * size, lambda parts: balance.reset(parts), every)
        for clock, per_sample in enumerate(times_by_iteration, 1):
            seconds = per_sample[transport.rank] * balance.parts[transport.rank]
            balance.after(ClockFigures(clock, seconds, 0.0, 0, 0))
            history.append(balance.parts)
        balance.end()
        return history

    by_rank = run_workers(size, work)
    assert all(history == by_rank[0] for history in by_rank)
    return by_rank[0]


def test_parts_follow_speeds_that_change():
    slow, swapped = (0.3, 0.1, 0.1), (0.1, 0.1, 0.3)
    history = run_looks([slow] * 12 + [swapped] * 12)
    assert history[0] == (8, 8, 8)
    assert history[11] == parts_for([1 / t for t in slow], 24) != (8, 8, 8)
    assert history[-1] == parts_for([1 / t for t in swapped], 24)
    assert sum(a != b for a, b in itertools.pairwise(history)) <= 3  # a look may fall into the change


def test_a_pause_now_and_then_moves_nothing():
    """One iteration in four a random worker takes three times as long: the median does not notice."""
    times = [[0.1 * (3 if (k % 4 == 0 and k // 4 % 3 == rank) else 1) for rank in range(3)] for k in range(40)]
    assert set(run_looks(times, EVERY)) == {(8, 8, 8)}


def test_a_job_deals_out_by_speed_and_stays_exact(pictures):
    """Rank 1 seems to take three times as long per sample, rank 0's parts grow; the trajectory is one worker's."""

    def act(worker):
        rank, distribution, solver = worker.transport.rank, worker.distribution, worker.solver
        done = distribution.meter.done

        def slowed(clock):
            figures = done(clock)
            per_sample = 0.3 if rank == 1 else 0.1
            seconds = per_sample * solver.net.graph.shapes["data"][0]
            return ClockFigures(clock, seconds, 0.0, figures.sent_bytes, figures.received_bytes)

        distribution.meter.done = slowed
        solver.step(2 * EVERY + 4)
        return parameters(solver), solver.net.graph.shapes["data"][0]

    options = DistributeOptions(agree_s=0, balance=True)
    by_rank = in_team(2, solver_param(picture_net(pictures, 4)), act, options=options)
    assert [count for _, count in by_rank] == [6, 2]
    assert_alike([values for values, _ in by_rank])
    solver, _ = built(solver_param(picture_net(pictures, 8)))
    solver.step(2 * EVERY + 4)
    assert_close(by_rank[0][0], parameters(solver))
