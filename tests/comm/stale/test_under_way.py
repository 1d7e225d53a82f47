"""What is heard of updates under staleness: each leaves and comes back once, in order, with the bytes sent."""

from __future__ import annotations

import pytest

from poseidon.comm.events import CommEvent, SendApplied, SendReduced, SendStarted, UnitDone, UnitReady
from poseidon.comm.stale.protocol import Mode
from poseidon.observe.tracer import Tracer, Window
from poseidon.plan import Scheme
from poseidon.run.stale_updates import Staleness
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers
from tests.comm.nets import LENET
from tests.comm.stale.training import join_stale, stale_request
from tests.comm.training import plan_of, solver_of

SIZE, STEPS = 3, 6
STAGES = (UnitReady, SendStarted, SendReduced, SendApplied, UnitDone)


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
@pytest.mark.parametrize("scheme", [Scheme.SERVER, Scheme.FACTOR_SERVER])
@pytest.mark.parametrize("clocks", [0, 2])
def test_updates_leave_and_come_back(clocks, scheme, mode):
    plan = plan_of(LENET, SIZE, stale_request(scheme))

    def work(transport: Transport) -> tuple[list[CommEvent], int]:
        heard: list[CommEvent] = []
        solver = solver_of(LENET, "SGD", LENET.batch)
        updates = join_stale(LENET, plan, transport, solver, Staleness(clocks, mode), heard.append)
        mailbox = updates.hub.mailbox
        tables = {table.spec.index for exchange in updates.exchanges for table in exchange.tables()}
        solver.step(STEPS)
        updates.drain()
        transport.barrier(30)
        updates.drain()
        sent = updates.hub.call(lambda: sum(mailbox.sent_about[table] for table in tables))
        heard = list(heard)
        transport.barrier(30)
        updates.close()
        return heard, sent

    for heard, sent in run_workers(SIZE, work, timeout_s=120):
        told = 0
        for unit in plan.units:
            sends = [send for send in plan.order if send.unit == unit.index]
            stages = [event for event in heard if event.unit == unit.index and isinstance(event, STAGES)]
            for kind in STAGES:
                assert [type(event) for event in stages].count(kind) == STEPS * (
                    1 if kind in (UnitReady, UnitDone) else len(sends)
                )
            counts = dict.fromkeys(STAGES, 0)
            for event in stages:
                counts[type(event)] += 1
                of_sends = [counts[kind] for kind in STAGES[1:4]]
                assert of_sends == sorted(of_sends, reverse=True)  # started, left, back
                assert counts[UnitReady] * len(sends) >= counts[SendStarted]
                assert counts[UnitDone] * len(sends) <= counts[SendApplied]
            told += sum(event.sent_bytes for event in stages if isinstance(event, SendReduced | SendApplied))
        # What a worker serves to others after its own last values came is told with the next update.
        assert 0 < told <= sent
        last = [event for event in heard if isinstance(event, UnitReady)][-1]
        assert told >= sent * (STEPS - 2) / STEPS, last


def test_a_timeline_has_moves():
    plan = plan_of(LENET, 2, stale_request())

    def work(transport: Transport):
        solver = solver_of(LENET, "SGD", LENET.batch)
        tracer = Tracer(Window(1, 4), plan)
        updates = join_stale(LENET, plan, transport, solver, Staleness(1), tracer.hear_comm)
        tracer.attach(solver)
        solver.step(6)
        updates.drain()
        updates.close()
        return tracer.take()

    for events in run_workers(2, work, timeout_s=60):
        for unit in plan.units:
            num_bytes = 0
            for iteration in (1, 2, 3):
                own = [e for e in events if e.unit == unit.index and e.iteration == iteration]
                moves = [event for event in own if event.kind == "move"]
                assert len(moves) == 2 * sum(send.unit == unit.index for send in plan.order)
                num_bytes += sum(move.num_bytes for move in moves)
                (end,) = (event for event in own if event.kind == "end")
                assert max(move.end_s for move in moves) <= end.start_s + 1e-9
            assert num_bytes > 0  # what is served after a clock's own values came is told with the next
