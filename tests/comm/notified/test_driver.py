"""The driver of notified puts: nothing waits that need not, parameters lie where others put, failures are named."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from poseidon.comm.events import CommEvent, SendApplied, SendReduced, SendStarted, UnitDone, UnitReady, WaitStarted
from poseidon.comm.exchange import Wiring
from poseidon.comm.notified.exchanges import FlowExchange
from poseidon.comm.notified.memory import Memory
from poseidon.comm.part import members_of
from poseidon.errors import PeerLost, UsageError
from poseidon.plan import CommPlan, Override, Scheme
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers
from tests.comm import jobs
from tests.comm.nets import CLIPPED, DEEP, LENET, MLP, TIED
from tests.comm.training import caught, join_deep, plain_request, plan_of
from tests.workers import WorkerPool

pytestmark = pytest.mark.xdist_group("workers")

SCHEMES = (Scheme.SERVER, Scheme.TREE, Scheme.FACTORS)


def deep_plan(size: int, scheme: Scheme | None) -> CommPlan:
    return plan_of(DEEP, size, plain_request(pattern="gpi", scheme=scheme))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_backward_never_waits_and_every_unit_goes_through_its_stages(scheme):
    plan = deep_plan(3, scheme)

    def work(transport: Transport) -> list[CommEvent]:
        heard: list[CommEvent] = []
        worker = join_deep(plan, transport, heard.append)
        worker.solver.step(3)
        worker.updates.drain()
        worker.close()
        return heard

    for heard in run_workers(3, work):
        for unit in (unit.index for unit in plan.units if unit.scheme is not Scheme.LOCAL):
            stages = [
                type(event) for event in heard if event.unit == unit and not type(event).__name__.startswith("Wait")
            ]
            num_sends = sum(send.unit == unit for send in plan.order)
            assert stages.count(UnitReady) == stages.count(UnitDone) == 3
            for kind in (SendStarted, SendReduced, SendApplied):
                assert stages.count(kind) == 3 * num_sends
            assert stages[0] is UnitReady
            assert stages[-1] is UnitDone
        # Between the first and the last gradient of an iteration nobody waits: waits come in the forward pass.
        num_units = len({event.unit for event in heard})
        order = [event for event in heard if isinstance(event, UnitReady | WaitStarted)]
        readies = [place for place, event in enumerate(order) if isinstance(event, UnitReady)]
        for iteration in range(3):
            first, *_, last = readies[iteration * num_units : (iteration + 1) * num_units]
            assert last - first == num_units - 1


def test_parameters_lie_in_the_segment_that_others_put_into():
    def work(transport: Transport) -> None:
        worker = join_deep(deep_plan(2, Scheme.SERVER), transport)
        memory = worker.updates.scheduler._memory
        first = memory._values.data_ptr()
        for exchange in worker.updates.exchanges:
            assert isinstance(exchange, FlowExchange)
            for member in exchange.members:
                assert first <= member.parameter.data_ptr() < first + memory._values.nbytes
                assert any(member.parameter is entry.value for entry in worker.solver.net.learnable)
        worker.close()

    run_workers(2, work)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_overtakes_values_of_the_iteration_before(scheme):
    """Values that others still lack belong to an older round than every gradient of the next iteration."""

    def work(transport: Transport) -> list[tuple[int, int]]:
        worker = join_deep(deep_plan(3, scheme), transport)
        endpoint = worker.updates.scheduler._endpoint
        rounds, puts = [], []
        write_notify = endpoint.write_notify

        def put(local: torch.Tensor, spot: Any, note: Any, queue: int = 0) -> None:
            puts.append((note.value, len(rounds)))
            write_notify(local, spot, note, queue)

        endpoint.begin_round, endpoint.write_notify = lambda: rounds.append(1), put
        worker.solver.step(4)
        worker.updates.drain()
        worker.close()
        return puts

    for puts in run_workers(3, work):
        assert {version for version, _ in puts} == {1, 2, 3, 4}
        assert all(version == number for version, number in puts)


def test_each_scheme_puts_the_bytes_that_the_plan_predicts():
    for scheme in (Scheme.SERVER, Scheme.TREE):
        plan, size, steps = deep_plan(4, scheme), 4, 3

        def work(transport: Transport, plan: CommPlan = plan) -> int:
            worker = join_deep(plan, transport)
            worker.solver.step(3)
            worker.updates.drain()
            sent = worker.updates.scheduler._endpoint.bytes_sent
            transport.barrier(10)
            worker.close()
            return sent

        sent = run_workers(size, work)
        elems = sum(unit.num_elems for unit in plan.units if unit.scheme is not Scheme.LOCAL)
        assert sum(sent) == steps * 2 * 8 * elems * (size - 1)  # up and down every edge of every tree, in doubles


# -- failures ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_worker_that_fails_is_named_with_what_was_exchanged(scheme):
    def work(transport: Transport) -> BaseException:
        worker = join_deep(deep_plan(3, scheme), transport)
        if transport.rank == 1:
            scheduler, calls = worker.updates.scheduler, []

            def apply(parts: Any, context: Any) -> None:
                calls.append(parts)
                if len(calls) > 5:
                    raise ValueError("the cat sat on the cable")
                original(parts, context)

            original, scheduler._apply = scheduler._apply, apply
        return caught(worker, steps=6)

    problems = run_workers(3, work)
    assert isinstance(problems[1], ValueError)
    for rank in (0, 2):
        assert isinstance(problems[rank], PeerLost)
        assert problems[rank].ranks == (1,)
        assert "ValueError: the cat sat on the cable" in str(problems[rank])
        assert "while exchanging unit" in str(problems[rank])
    assert not [thread for thread in threading.enumerate() if thread.name == "poseidon-notified"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_that_leaves_early_is_a_loss_to_those_who_wait_for_it(scheme):
    def work(transport: Transport) -> BaseException | None:
        worker = join_deep(deep_plan(3, scheme), transport)
        if transport.rank == 2:
            worker.solver.step(2)
            worker.updates.drain()
            worker.close()
            return None
        return caught(worker, steps=6)

    for problem in run_workers(3, work)[:2]:
        assert isinstance(problem, PeerLost)
        assert 2 in problem.ranks
        assert "left the job" in str(problem)


def test_parameters_that_are_not_in_host_memory_are_refused():
    def work(transport: Transport) -> None:
        plan = plan_of(MLP, 1, plain_request())
        weight = torch.nn.Parameter(torch.empty(2, 3, device="meta"))
        unit = replace(plan.units[0], params=("fc1/0",))
        exchange = FlowExchange(Wiring(unit, members_of([("fc1/0", weight)]), transport, ()), ())
        with pytest.raises(UsageError, match="'gpi' puts gradients from host memory, but fc1/0 is on meta"):
            Memory(plan, [exchange], transport)

    run_workers(1, work)


# -- between processes ------------------------------------------------------------------------------------------------
SAMPLE = (
    (MLP, "Adam", plain_request(pattern="gpi", scheme=Scheme.FACTORS)),
    (LENET, "Nesterov", plain_request(pattern="gpi", scheme=Scheme.SERVER, chunk_bytes=(320.0,))),
    (TIED, "RMSProp", plain_request(pattern="gpi", scheme=Scheme.TREE, fuse_bytes=(1e6,))),
    (CLIPPED, "AdaGrad", plain_request(pattern="gpi", overrides=(Override("fc1", Scheme.TREE),))),
)


def test_processes_equal_one_worker_with_all_their_batches(worker_pool: WorkerPool):
    sample = [(case, kind, plan_of(case, 3, request)) for case, kind, request in SAMPLE]
    jobs.assert_processes_like_one_worker(worker_pool, sample)


def test_a_worker_killed_while_exchanging_is_named(worker_pool: WorkerPool):
    plan = plan_of(jobs.DEEP, 3, plain_request(pattern="gpi", scheme=Scheme.SERVER), torch.float32).to_json()
    outcomes = worker_pool.run(jobs.lose, 3, lost=(2,), plan=plan, victim=2, how="kill")
    for outcome in outcomes[:2]:
        assert outcome.error is None, outcome.trace
        assert outcome.value["ranks"] == [2]
        assert "while exchanging unit" in outcome.value["text"]
