"""A team under staleness: tests, snapshots and requests at common clocks; servers of their own; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from poseidon.errors import UsageError
from poseidon.plan import STALE_SCHEMES, Cluster, CommPlan, PlanRequest, Scheme, make_plan
from poseidon.run.agreement import Agreement
from poseidon.run.distribute import DistributeOptions, distribute
from poseidon.run.layer_times import estimated_times
from poseidon.run.profile import profile_net
from poseidon.run.roundtable import Roundtable
from poseidon.run.servers import serve_tables, workers_of
from poseidon.solver import Action, Solver, events
from poseidon.spec import caffe_pb2
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers
from tests.run.jobs import (
    Worker,
    assert_alike,
    assert_close,
    built,
    in_team,
    parameters,
    picture_net,
    solver_param,
    write_pictures,
)


@pytest.fixture
def pictures(tmp_path) -> str:
    return write_pictures(tmp_path / "pictures")


def plan_for(solver: Solver, size: int, schemes: tuple[Scheme, ...]) -> CommPlan:
    profile = profile_net(solver.net, estimated_times(solver.net, 1e9), iter_size=1, needs_all_gradients=False)
    return make_plan(profile, Cluster((1,) * size, bandwidth_bps=1e9), PlanRequest(among=schemes))


def under_staleness(
    size: int,
    param: caffe_pb2.SolverParameter,
    act: Callable[[Worker], Any],
    options: DistributeOptions,
    *,
    managed: bool = False,
) -> list[Any]:
    """What `act` returns on each worker; the servers that the options ask for come on top of `size`."""

    def work(transport: Transport) -> Any:
        workers = workers_of(transport, options.servers)
        if workers is None:
            serve_tables(transport, options.servers)
            return None
        solver, heard = built(param)
        serving = transport if options.servers else None
        schemes = (Scheme.SERVER,) if managed else STALE_SCHEMES
        with distribute(solver, workers, plan_for(solver, size, schemes), options, serving=serving) as distribution:
            return act(Worker(solver, heard, distribution, workers))

    return run_workers(size + options.servers, work)[:size]


def stale(staleness: int, **options: Any) -> DistributeOptions:
    return DistributeOptions(agree_s=0, staleness=staleness, **options)


def step(count: int) -> Callable[[Worker], list[torch.Tensor]]:
    def act(worker: Worker) -> list[torch.Tensor]:
        worker.solver.step(count)
        return parameters(worker.solver)

    return act


@pytest.mark.parametrize("servers", [0, 1, 2])
@pytest.mark.parametrize("consistency", ["ssp", "ssp-push"])
def test_staleness_0_equals_one_worker(pictures, consistency, servers):
    """Random crops, dropout, ignored labels: everything that has to be shared out."""
    loss = "loss_param { ignore_label: 4 }"
    options = stale(0, consistency=consistency, servers=servers, verify_replicas=2)
    found = under_staleness(3, solver_param(picture_net(pictures, 2, loss=loss)), step(6), options)
    assert_alike(found)
    alone, _ = built(solver_param(picture_net(pictures, 6, loss=loss)))
    alone.step(6)
    assert_close(found[0], parameters(alone))


@pytest.mark.parametrize("servers", [0, 1])
def test_managed_workers_have_the_same_in_the_end(pictures, servers):
    """Each worker has applied its own rule, and everybody's changes have reached everybody."""
    options = stale(1, consistency="ssp-managed", servers=servers)
    found = under_staleness(3, solver_param(picture_net(pictures, 2)), step(6), options, managed=True)
    for other in found[1:]:
        assert_close(other, found[0])


def test_tests_and_snapshots_are_at_a_common_clock(pictures, tmp_path):
    """Under staleness 2 all workers test with the same parameters, and what is saved are those."""
    param = solver_param(
        picture_net(pictures, 2),
        f'test_interval: 3 test_iter: 4 snapshot: 4 snapshot_prefix: "{tmp_path}/s" display: 2',
    )

    def act(worker: Worker) -> Any:
        seen = []

        def look(event: events.Event) -> None:
            if isinstance(event, events.TestStarted):
                seen.append([entry.value.detach().clone() for entry in worker.solver.net.learnable])

        worker.solver.listeners.append(look)
        worker.solver.step(8)
        scores = [[output.value for output in event.outputs] for event in worker.heard.of(events.TestDone)]
        return seen, parameters(worker.solver), scores

    found = under_staleness(3, param, act, stale(2))
    for test in range(3):
        assert_alike([seen[test] for seen, _, _ in found])
    assert_alike([end for _, end, _ in found])
    assert found[0][2] == found[1][2] == found[2][2]
    saved, _ = built(solver_param(picture_net(pictures, 2)))
    saved.net.load(tmp_path / "s_iter_8.caffemodel")
    assert_close(found[0][1], [entry.value.detach() for entry in saved.net.learnable], rtol=1e-6)


@pytest.mark.parametrize("servers", [0, 1])
def test_a_resumed_run_repeats_an_uninterrupted_one(pictures, tmp_path, servers):
    """Values and histories go back to where they are served; by an Adam, whose histories and iteration matter."""
    text = f'type: "Adam" base_lr: 0.01 momentum2: 0.99 snapshot_prefix: "{tmp_path}/s" snapshot_format: HDF5'
    param = solver_param(picture_net(pictures, 2), text)

    def first(worker: Worker) -> list[torch.Tensor]:
        worker.solver.step(3)
        worker.solver.snapshot()
        worker.solver.step(3)
        return parameters(worker.solver)

    def again(worker: Worker) -> list[torch.Tensor]:
        worker.solver.step(1)  # other values and histories than those to come
        worker.solver.restore(tmp_path / "s_iter_3.solverstate.h5")
        worker.solver.step(3)
        return parameters(worker.solver)

    whole = under_staleness(2, param, first, stale(0, servers=servers))
    resumed = under_staleness(2, param, again, stale(0, servers=servers))
    assert_alike(resumed)
    assert_close(resumed[0], whole[0])
    alone, _ = built(param)
    alone.restore(tmp_path / "s_iter_3.solverstate.h5")  # the format is Caffe's: any number of workers goes on from it
    assert alone.iter == 3


@pytest.mark.parametrize("servers", [0, 1])
def test_a_resumed_managed_run_repeats_an_uninterrupted_one(pictures, tmp_path, servers):
    """With staleness 0 and a linear rule: everybody goes on with the mean of the momenta, whose steps add up to the
    same."""
    param = solver_param(picture_net(pictures, 2), f'snapshot_prefix: "{tmp_path}/s" snapshot_format: HDF5')
    options = stale(0, consistency="ssp-managed", servers=servers)

    def first(worker: Worker) -> list[torch.Tensor]:
        worker.solver.step(3)
        worker.solver.snapshot()
        worker.solver.step(3)
        return parameters(worker.solver)

    def again(worker: Worker) -> list[torch.Tensor]:
        worker.solver.step(2)  # other values, momenta and clocks than those to come
        worker.solver.restore(tmp_path / "s_iter_3.solverstate.h5")
        worker.solver.step(3)
        return parameters(worker.solver)

    whole = under_staleness(2, param, first, options, managed=True)
    resumed = under_staleness(2, param, again, options, managed=True)
    assert_close(resumed[0], whole[0])
    assert_close(resumed[1], resumed[0])


def test_a_managed_run_goes_on_from_what_was_saved(pictures, tmp_path):
    """Under staleness: after a restore all workers have the parameters of the snapshot, and end with the same."""
    param = solver_param(picture_net(pictures, 2), f'snapshot_prefix: "{tmp_path}/s" snapshot_format: HDF5')

    def first(worker: Worker) -> list[torch.Tensor]:
        worker.solver.step(4)
        worker.solver.snapshot()
        return parameters(worker.solver)

    def again(worker: Worker) -> list[list[torch.Tensor]]:
        worker.solver.step(3)
        worker.solver.restore(tmp_path / "s_iter_4.solverstate.h5")
        restored = parameters(worker.solver)
        worker.solver.step(4)
        return [restored, parameters(worker.solver)]

    options = stale(2, consistency="ssp-managed")
    saved = under_staleness(3, param, first, options, managed=True)
    found = under_staleness(3, param, again, options, managed=True)
    for restored, end in found:
        assert_close(restored, saved[0])
        assert_close(end, found[0][1])


@pytest.mark.parametrize("consistency", ["ssp-push", "ssp-managed"])
def test_a_snapshot_of_an_exact_run_goes_on_under_staleness(pictures, tmp_path, consistency):
    """It brings a plan along that has no servers: that is left aside."""
    param = solver_param(picture_net(pictures, 2), f'snapshot_prefix: "{tmp_path}/s" snapshot_format: HDF5')

    def first(worker: Worker) -> list[torch.Tensor]:
        worker.solver.step(3)
        worker.solver.snapshot()
        worker.solver.step(3)
        return parameters(worker.solver)

    def again(worker: Worker) -> list[torch.Tensor]:
        worker.solver.restore(tmp_path / "s_iter_3.solverstate.h5")
        worker.solver.step(3)
        return parameters(worker.solver)

    whole = in_team(2, param, first, scheme=Scheme.RING)
    options = stale(0, consistency=consistency)
    resumed = under_staleness(2, param, again, options, managed=consistency == "ssp-managed")
    assert_close(resumed[0], whole[0])


def test_a_request_is_acted_upon_by_all_in_the_same_iteration(pictures):
    """With workers up to s iterations apart a vote is read s + 1 iterations after it began."""
    param = solver_param(picture_net(pictures, 2), "max_iter: 40")

    def act(worker: Worker) -> int:
        asked = worker.transport.rank == 1
        worker.solver.action = lambda: Action.STOP if asked and worker.solver.iter == 5 else Action.NONE
        worker.solver.solve()
        return worker.solver.iter

    found = under_staleness(3, param, act, stale(2))
    assert len(set(found)) == 1
    assert 5 < found[0] < 15


def test_votes_wait_for_nobody():
    """Two iterations ahead of the other worker, nobody is asked to wait for its vote."""

    def work(transport: Transport) -> list[Action]:
        agreement = Agreement(Roundtable(transport), 0.0, lag=3)
        ahead = [agreement.turn(Action.NONE, testing=False) for _ in range(3)] if transport.rank == 0 else []
        transport.barrier(10.0)  # the other one has begun nothing before
        if transport.rank == 1:
            ahead = [agreement.turn(Action.SNAPSHOT if n == 0 else Action.NONE, testing=False) for n in range(3)]
        decided = [*ahead, *(agreement.turn(Action.NONE, testing=False) for _ in range(4))]
        agreement.end()
        return decided

    first, second = run_workers(2, work)
    assert first == second
    assert first.count(Action.SNAPSHOT) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"staleness": -1}, "--staleness and --servers are 0 or more, got -1 and 0"),
        ({"servers": 1}, "--servers are for training with --staleness"),
        ({"staleness": 1, "consistency": "bsp"}, "--consistency is one of ssp-push, ssp, ssp-managed, got 'bsp'"),
        ({"staleness": 1, "sync_bn": True}, "--sync-bn needs all workers in the same iteration"),
        ({"staleness": 2, "balance": True}, "--balance needs all workers in the same iteration"),
    ],
)
def test_what_makes_no_sense_is_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        DistributeOptions(**options)


def test_servers_leave_at_least_one_worker():
    def work(transport: Transport) -> None:
        with pytest.raises(UsageError, match=r"--servers 2 of 2 processes leave no worker"):
            workers_of(transport, 2)

    run_workers(2, work)
