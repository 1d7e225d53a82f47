"""Conductor: how a scheduler ends, whatever its threads do: one failure, told to the others first, heard by all."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from poseidon.comm.conductor import Conductor, Progress
from poseidon.comm.exchange import Exchange
from poseidon.comm.part import Part
from poseidon.errors import PeerLost, UsageError
from tests.comm.nets import MLP
from tests.comm.training import plain_request, plan_of
from tests.comm.watching import PATIENCE_S


class Unit3:
    """Stands in for an exchange: all that counts here is its name."""

    def __str__(self) -> str:
        return "unit 3: fc/0"


class Told(Conductor[Progress]):
    """Notes what the others are told; telling them takes until it is released."""

    def __init__(self, *, can_tell: bool = True) -> None:
        exchange: Any = Unit3()
        super().__init__(plan_of(MLP, 2, plain_request()), {3: Progress(exchange, iteration=1)}, lambda *_: None, None)
        self.exchange = exchange
        self.told: list[str] = []
        self.telling, self.released = threading.Event(), threading.Event()
        self._can_tell = can_tell

    def ready(self, unit: int, context: Any) -> None:
        raise AssertionError("not called")

    def release(self) -> None:
        raise AssertionError("not called")

    def close(self) -> None:
        raise AssertionError("not called")

    def _is_reduced(self, progress: Progress) -> bool:
        return False

    def _held(self) -> list[Part]:
        return []

    def _abort(self, exchange: Exchange, reason: str) -> None:
        self.telling.set()
        assert self.released.wait(PATIENCE_S)
        if not self._can_tell:
            raise OSError("the line is cut")
        self.told.append(reason)

    def fail(self, problem: BaseException) -> None:
        self._fail(problem, self.exchange)

    def failing(self, problem: BaseException) -> threading.Thread:
        thread = threading.Thread(target=self._quietly, args=(problem,))
        thread.start()
        return thread

    def _quietly(self, problem: BaseException) -> None:
        try:
            self.fail(problem)
        except OSError:
            assert not self._can_tell


def test_the_others_are_told_before_anybody_here_hears_of_it():
    conductor = Told()
    first = conductor.failing(ValueError("the cat sat on the cable"))
    assert conductor.telling.wait(PATIENCE_S)
    assert not conductor._has_ended
    conductor.released.set()
    with pytest.raises(ValueError, match="the cat sat on the cable"):
        conductor.wait(3)
    first.join(PATIENCE_S)
    assert conductor.told == ["ValueError: the cat sat on the cable (while exchanging unit 3: fc/0)"]


def test_what_follows_from_a_failure_waits_for_it_and_is_no_news():
    conductor = Told()
    first = conductor.failing(UsageError("the first"))
    assert conductor.telling.wait(PATIENCE_S)
    second = conductor.failing(PeerLost("the second", (1,)))
    conductor.released.set()
    second.join(PATIENCE_S)
    with pytest.raises(UsageError, match=r"the first \(while exchanging unit 3: fc/0\)"):  # when the second is through
        conductor._raise_failure()
    first.join(PATIENCE_S)
    assert len(conductor.told) == 1


def test_nobody_waits_forever_if_the_others_cannot_be_told():
    conductor = Told(can_tell=False)
    conductor.released.set()
    first = conductor.failing(ValueError("the cat sat on the cable"))
    for call in (lambda: conductor.wait(3), conductor.drain, conductor.wait_reduced):
        with pytest.raises(ValueError, match="the cat sat on the cable"):
            call()
    first.join(PATIENCE_S)


def test_a_peer_that_is_lost_to_us_is_told_to_nobody():
    conductor = Told()
    conductor.fail(PeerLost("rank 1 is gone", (1,)))
    with pytest.raises(PeerLost, match=r"rank 1 is gone \(while exchanging unit 3: fc/0\)") as raised:
        conductor.wait(3)
    assert raised.value.ranks == (1,)
    assert conductor.told == []
