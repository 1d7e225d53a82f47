"""Whatever goes wrong in an exchange is raised to everybody who waits, on all workers, with rank and parameters named;
and nothing that was started stays behind."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from poseidon.comm.events import SendApplied, SendReduced, SendStarted, UnitDone, UnitReady
from poseidon.comm.exchange import Exchange, Gathering
from poseidon.comm.part import Member, Part
from poseidon.comm.scheduler import Scheduler
from poseidon.errors import PeerLost, PoseidonError, TransportError
from poseidon.plan import Override, Scheme, Send
from poseidon.transport import Transport
from poseidon.transport.completion import Completion
from poseidon.transport.engine import Engine
from poseidon.transport.faulty import Drop, Faults, FaultyTransport
from poseidon.transport.inproc import run_workers
from tests.comm.nets import DEEP, MLP
from tests.comm.training import Worker, caught, join, join_deep, plain_request, plan_of, solver_of
from tests.comm.watching import PATIENCE_S, HoldingTransport

SCHEMES = (Scheme.RING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER)


def comm_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("poseidon-")]


def exchange_of(worker: Worker, layer: str) -> Exchange:
    return next(e for e in worker.updates.exchanges if e.members[0].name == f"{layer}/0")


def failing(exchange: Exchange, method: str, after: int) -> None:
    """Lets one step of an exchange raise, but for the first calls."""
    original, calls = getattr(exchange, method), []

    def broken(*arguments):
        calls.append(1)
        if len(calls) > after:
            raise ValueError("the cat sat on the cable")
        return original(*arguments)

    setattr(exchange, method, broken)


# -- one worker's exchange fails --------------------------------------------------------------------------------------
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("method", ["begin", "reduced", "spread"])
@pytest.mark.parametrize("after", [0, 2])
def test_an_exchange_that_raises_is_raised_everywhere(scheme, method, after):
    plan = plan_of(DEEP, 3, plain_request(scheme=scheme))

    def work(transport: Transport) -> BaseException:
        worker = join_deep(plan, transport)
        if transport.rank == 1:
            failing(exchange_of(worker, "fc7"), method, after)
        return caught(worker)

    problems = run_workers(3, work)
    assert isinstance(problems[1], ValueError)
    assert "while exchanging unit" in "".join(problems[1].__notes__)
    for rank in (0, 2):
        assert isinstance(problems[rank], PeerLost)
        assert problems[rank].ranks == (1,)
        assert "rank 1 (host" in str(problems[rank])
        assert "ValueError: the cat sat on the cable" in str(problems[rank])
        assert "fc7/0, fc7/1" in str(problems[rank])


@pytest.mark.parametrize("where", ["ready", "started", "reduced", "applied", "done"])
def test_a_listener_that_raises_ends_training(where):
    kind = {
        "ready": UnitReady,
        "started": SendStarted,
        "reduced": SendReduced,
        "applied": SendApplied,
        "done": UnitDone,
    }
    plan = plan_of(DEEP, 2, plain_request())

    def listen(event) -> None:
        if type(event) is kind[where]:
            raise RuntimeError("no room for the log")

    def work(transport: Transport) -> BaseException:
        return caught(join_deep(plan, transport, listen if transport.rank == 0 else None))

    def run(transport: Transport) -> BaseException:
        problem = work(transport)
        if transport.rank == 0 and where == "ready":  # raised in the compute thread: the runtime tells the others
            transport.abort(str(problem))
        return problem

    problems = run_workers(2, run)
    assert isinstance(problems[0], RuntimeError)
    assert isinstance(problems[1], PeerLost)
    assert "no room for the log" in str(problems[1])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_lost_connection_names_its_rank_on_all_others(scheme):
    plan = plan_of(DEEP, 3, plain_request(scheme=scheme))

    def work(transport: Transport) -> BaseException:
        drop = Faults(seed=1, max_delay_s=1e-4, drop=Drop(rank=2, operation=55))
        return caught(join_deep(plan, FaultyTransport(transport, drop)), steps=20)

    for problem in run_workers(3, work):
        assert isinstance(problem, PeerLost)
        assert problem.ranks == (2,)
        assert "connection dropped on purpose" in str(problem)
        assert "while exchanging unit" in str(problem)


def test_a_worker_that_leaves_is_missed_by_the_others():
    plan = plan_of(DEEP, 3, plain_request())

    def work(transport: Transport) -> BaseException | None:
        worker = join_deep(plan, transport)
        if transport.rank == 0:
            worker.solver.step(1)
            worker.updates.drain()
            worker.close()
            return None  # its transport is closed now
        return caught(worker)

    problems = run_workers(3, work)
    for rank in (1, 2):
        assert isinstance(problems[rank], PeerLost)
        assert 0 in problems[rank].ranks  # and the other one, once that has left for the same reason


def test_after_a_failure_every_call_raises_it():
    plan = plan_of(DEEP, 2, plain_request())

    def work(transport: Transport) -> list[str]:
        worker = join_deep(plan, transport)
        failing(exchange_of(worker, "fc8"), "reduced", 0)
        texts = []
        for call in (lambda: worker.solver.step(3), worker.updates.drain, lambda: worker.updates.scheduler.wait(0)):
            with pytest.raises((ValueError, PeerLost)) as raised:
                call()
            texts.append(str(raised.value))
        worker.close()
        return texts

    for texts in run_workers(2, work):
        assert len(set(texts)) == 1


def test_workers_with_different_plans_do_not_hang():
    plans = [plan_of(DEEP, 2, plain_request(scheme=scheme)) for scheme in (Scheme.RING, Scheme.SERVER)]
    other = replace(plans[0], order=tuple(reversed(plans[0].order)))

    def work(transport: Transport) -> BaseException:
        return caught(join_deep((plans[0], other)[transport.rank], transport))

    for problem in run_workers(2, work):
        assert isinstance(problem, PoseidonError)


# -- the end ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("barrier", [False, True])
def test_no_thread_is_left_when_training_is_over(barrier):
    before = comm_threads()
    case = replace(DEEP, settings="clip_gradients: 1") if barrier else DEEP
    plan = plan_of(case, 2, plain_request())

    def work(transport: Transport) -> None:
        worker = join(case, plan, transport, solver_of(case, "SGD", case.batch))
        worker.solver.step(2)
        worker.updates.drain()
        worker.close()

    run_workers(2, work)
    assert not [thread for thread in comm_threads() if thread not in before]


def test_closing_before_anything_was_exchanged():
    before = comm_threads()
    plan = plan_of(DEEP, 2, plain_request())
    run_workers(2, lambda transport: join_deep(plan, transport).close())
    assert not [thread for thread in comm_threads() if thread not in before]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("in_flight", [1, 4])
def test_closing_in_flight_returns_and_leaves_no_thread(scheme, in_flight):
    """With one in flight the starter waits for room; with more it waits for units that never become ready."""
    plan = plan_of(DEEP, 2, plain_request(scheme=scheme, in_flight=in_flight))
    released = threading.Event()

    def work(transport: Transport) -> str:
        held = HoldingTransport(transport, plan, range(len(plan.units)), released)
        worker = join_deep(plan, held)
        worker.solver.step(1)
        problems: list[BaseException] = []
        waiter = threading.Thread(target=lambda: problems.append(_raised(lambda: worker.updates.scheduler.wait(0))))
        waiter.start()
        worker.close()
        waiter.join(PATIENCE_S)
        transport.barrier(PATIENCE_S)  # who leaves sooner is lost to the other
        return str(problems[0])

    for text in run_workers(2, work):
        assert "was on its way when communication was closed" in text
        assert "conv1/0" in text
    released.set()
    for thread in comm_threads():
        thread.join(PATIENCE_S)
    assert not comm_threads()


def _raised(call) -> BaseException:
    with pytest.raises(TransportError) as raised:
        call()
    return raised.value


def tensors_in(thing, seen: set[int] | None = None) -> list[torch.Tensor]:
    """All tensors that an exchange of ours refers to, through our own objects and containers."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return []
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        return [thing]
    inside: list = []
    if isinstance(thing, dict):
        inside = [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple)):
        inside = list(thing)
    elif type(thing).__module__.startswith("poseidon.comm"):
        slots = getattr(type(thing), "__slots__", ())
        inside = [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, name) for name in slots)]
    return [found for part in inside for found in tensors_in(part, seen)]


def test_gradients_are_let_go_when_their_exchange_is_over(monkeypatch):
    """What stays is the memory in which factors arrive, which is made once: rows of both workers, u and v."""
    monkeypatch.setattr("poseidon.comm.several.LARGE_BYTES", 1)
    plan = plan_of(DEEP, 2, plain_request(overrides=(Override("fc6", Scheme.FACTORS), Override("fc7", Scheme.SERVER))))

    def work(transport: Transport) -> list[tuple]:
        worker = join_deep(plan, transport)
        worker.solver.step(2)
        worker.updates.drain()
        worker.close()
        parameters = list(worker.solver.net.parameters())
        held = [found for exchange in worker.updates.exchanges for found in tensors_in(exchange)]
        assert all(parameter.grad is None for parameter in parameters)
        return [tuple(tensor.shape) for tensor in held if all(tensor is not parameter for parameter in parameters)]

    rows = [(2 * DEEP.batch, sum(unit.shapes[0])) for unit in plan.units if unit.scheme is Scheme.FACTORS]
    assert rows
    assert run_workers(2, work) == [rows, rows]


def test_a_fused_unit_keeps_one_bucket_and_no_more():
    plan = plan_of(DEEP, 2, plain_request(scheme=Scheme.SERVER, fuse_bytes=(1e9,)))
    assert len(plan.units) == 1

    def work(transport: Transport) -> int:
        worker = join_deep(plan, transport)
        worker.solver.step(2)
        worker.updates.drain()
        (exchange,) = worker.updates.exchanges
        worker.close()
        return sum(found.numel() for found in tensors_in(exchange))

    parameters_and_bucket = 2 * plan.units[0].num_elems
    assert run_workers(2, work) == [parameters_and_bucket] * 2


# -- a gather fails while another is under way ------------------------------------------------------------------------
class Held(Gathering):
    """A gather that is over when it is released, and whose sum may fail."""

    def __init__(self, send: Send, transport: Any, problem: BaseException | None = None) -> None:
        self.unit, self.transport = SimpleNamespace(index=send.unit), transport
        self.members = [SimpleNamespace(name=f"fc{send.unit}", value=torch.zeros(1))]
        self.begun, self.released, self._problem = threading.Event(), threading.Event(), problem

    def begin(self, send: Send) -> Completion:
        self.begun.set()
        return self.transport.engine.submit(send, lambda: self.released.wait(PATIENCE_S), "gathering")

    def arrival(self, token: Completion) -> Completion:
        return token

    def reduced(self, send: Send, token: Completion) -> list[Part]:
        assert self._problem is not None, "never released"
        raise self._problem

    def offer(self, member: Member, grad: torch.Tensor | None) -> None:
        raise AssertionError("not called")

    def drop(self) -> None:
        raise AssertionError("not called")


def test_a_thread_that_fails_does_not_wait_for_itself():
    """Telling the others ends what is under way here, in the thread that tells: it must not go on with that."""
    engine = Engine("test", PATIENCE_S)
    transport = SimpleNamespace(engine=engine, abort=lambda reason: engine.interrupt(lambda what: PeerLost(what, (0,))))
    plan = plan_of(MLP, 2, plain_request(scheme=Scheme.FACTORS, in_flight=2))
    first, second = plan.order[:2]
    broken, other = Held(first, transport, ValueError("the cat sat on the cable")), Held(second, transport)
    scheduler = Scheduler(replace(plan, order=(first, second)), [broken, other], lambda *_: None)
    heard: list[BaseException] = []

    def wait() -> None:
        with pytest.raises(ValueError, match="the cat") as caught_here:
            scheduler.wait(first.unit)
        heard.append(caught_here.value)

    try:
        for send, exchange in ((first, broken), (second, other)):
            scheduler.ready(send.unit, None)
            assert exchange.begun.wait(PATIENCE_S)
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        broken.released.set()
        waiting.join(PATIENCE_S)
        assert heard, "nobody was told"
    finally:
        other.released.set()
        scheduler.close()
        engine.close()
