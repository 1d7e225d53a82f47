"""Engine and Completion: order within a key, independence of keys, errors, interruption, end."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch

from poseidon.errors import PeerLost, TransportError, TransportTimeout
from poseidon.transport.completion import Completion
from poseidon.transport.engine import Engine

LIMIT_S = 20.0


@pytest.fixture
def engine():
    engine = Engine("test", LIMIT_S)
    yield engine
    engine.close()


def test_jobs_of_one_key_run_in_order(engine):
    done = []
    works = [engine.submit("key", lambda number=number: done.append(number), "counting") for number in range(50)]
    for work in works:
        work.wait()
    assert done == list(range(50))


def test_jobs_of_different_keys_run_side_by_side(engine):
    """Each waits for the next one to begin: with fewer threads than jobs this would never end."""
    begun = [threading.Event() for _ in range(9)]

    def run(number: int) -> None:
        begun[number].set()
        assert begun[(number + 1) % 9].wait(LIMIT_S)

    for work in [engine.submit(number, lambda number=number: run(number), "meeting") for number in range(9)]:
        work.wait()


def test_threads_serve_again(engine):
    idents = set()
    for _ in range(20):
        engine.submit(object(), lambda: idents.add(threading.get_ident()), "looking").wait()
    assert len(idents) <= 2  # a second one may start before the first is idle again
    assert threading.get_ident() not in idents


def test_it_knows_its_own_threads(engine):
    seen = []
    engine.submit("key", lambda: seen.append(engine.runs_here()), "looking").wait()
    assert seen == [True]
    assert not engine.runs_here()


def test_an_error_is_raised_by_every_wait_and_stops_nothing(engine):
    work = engine.submit("key", lambda: 1 // 0, "dividing")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            work.wait()
    assert work.done()
    engine.submit("key", lambda: None, "going on").wait()


def test_a_wait_that_is_too_short_names_what_it_waits_for(engine):
    release = threading.Event()
    work = engine.submit("key", lambda: release.wait(LIMIT_S), "gathering 4.0 MB from 3 workers", (1, 2))
    assert not work.done()
    with pytest.raises(TransportTimeout, match=r"gathering 4.0 MB from 3 workers: not over after 0.01 s") as caught:
        work.wait(0.01)
    assert caught.value.ranks == (1, 2)
    release.set()
    work.wait()


def test_interruption_fails_what_runs_and_what_waits(engine):
    begun, release = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        release.wait(LIMIT_S)

    works = [engine.submit("key", run, "first"), engine.submit("key", run, "second")]
    assert begun.wait(LIMIT_S)
    engine.interrupt(lambda what: PeerLost(f"rank 1 is lost; while {what}", (1,)))
    for work, what in zip(works, ("first", "second"), strict=True):
        with pytest.raises(PeerLost, match=f"while {what}"):
            work.wait()
    release.set()


def test_a_closed_engine_takes_nothing_and_drops_what_has_not_begun():
    engine = Engine("test", LIMIT_S)
    begun, release = threading.Event(), threading.Event()
    running = engine.submit("key", lambda: (begun.set(), release.wait(LIMIT_S)), "running")
    waiting = engine.submit("key", lambda: None, "waiting")
    assert begun.wait(LIMIT_S)
    closing = threading.Thread(target=engine.close)
    closing.start()
    with pytest.raises(TransportError, match="waiting: the transport was closed"):
        waiting.wait()
    release.set()
    running.wait()
    closing.join(LIMIT_S)
    with pytest.raises(TransportError, match="late: the transport is closed"):
        engine.submit("key", lambda: None, "late")


def test_the_first_word_on_an_operation_counts():
    failed, succeeded = Completion("this", (), LIMIT_S), Completion("that", (), LIMIT_S)
    failed.fail(PeerLost("rank 3 is lost", (3,)))
    failed.succeed()
    with pytest.raises(PeerLost):
        failed.wait()
    succeeded.succeed()
    succeeded.fail(PeerLost("rank 3 is lost", (3,)))
    succeeded.wait()


def test_on_cuda_a_job_runs_after_what_its_submitter_had_queued(engine, monkeypatch):
    """By the calls it makes: there may be no device here."""
    calls = []

    class Event:
        def record(self) -> None:
            calls.append(("record", threading.get_ident()))

    class Stream:
        def wait_event(self, event: Event) -> None:
            calls.append(("wait for event", threading.get_ident()))

        def synchronize(self) -> None:
            calls.append(("synchronize", threading.get_ident()))

    @contextlib.contextmanager
    def stream(chosen: Stream):
        calls.append(("enter stream", threading.get_ident()))
        yield
        calls.append(("leave stream", threading.get_ident()))

    for name, thing in {"is_initialized": lambda: True, "Event": Event, "Stream": Stream, "stream": stream}.items():
        monkeypatch.setattr(torch.cuda, name, thing)
    engine.submit("key", lambda: calls.append(("run", threading.get_ident())), "copying").wait()
    names = [name for name, _ in calls]
    assert names == ["record", "enter stream", "wait for event", "run", "synchronize", "leave stream"]
    assert calls[0][1] == threading.get_ident()
    assert {ident for _, ident in calls[1:]} == {calls[1][1]}
    assert calls[1][1] != threading.get_ident()


def test_the_thread_that_carries_a_job_out_goes_on_with_what_follows(engine):
    may_end, followed = threading.Event(), threading.Event()
    seen = []

    def follow():
        seen.append((engine.runs_here(), work.done()))
        followed.set()

    work = engine.submit("key", lambda: may_end.wait(LIMIT_S), "waiting")
    assert work.then(follow)
    may_end.set()
    assert followed.wait(LIMIT_S)
    assert seen == [(True, True)]


def test_what_follows_comes_once_also_after_a_failure(engine):
    may_end = threading.Event()
    followed = []
    work = engine.submit("key", lambda: may_end.wait(LIMIT_S), "waiting")
    assert work.then(lambda: followed.append(engine.runs_here()))
    engine.interrupt(lambda what: PeerLost(what))
    assert followed == [False], "by the thread that interrupts"
    may_end.set()
    engine.close()
    assert followed == [False]


def test_nothing_follows_what_is_over_already():
    work = Completion("nothing", (), LIMIT_S)
    work.succeed()
    assert not work.then(lambda: pytest.fail("nobody is left to call it"))
