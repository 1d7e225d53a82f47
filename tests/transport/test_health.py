"""Health: a star of socket pairs in one process; whoever is lost is found and told to all, nobody else is blamed."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest

from poseidon.transport import health
from poseidon.transport.base import Peer
from poseidon.transport.health import Health, HealthOptions, Line

LIMIT_S = 20.0
QUICK = HealthOptions(interval_s=0.1, limit_s=1.0)
PEERS = tuple(Peer(rank, f"host{rank}", 100 + rank) for rank in range(4))


class Star:
    """Healths of some ranks; the ends of the others stay in the test's hands."""

    def __init__(self, ranks: tuple[int, ...], options: HealthOptions = HealthOptions()) -> None:  # noqa: B008
        pairs = {rank: socket.socketpair() for rank in range(1, len(PEERS))}
        self.ends = {rank: pair[1] for rank, pair in pairs.items()}
        self.told = {rank: threading.Event() for rank in ranks}
        self.healths: dict[int, Health] = {}
        for rank in ranks:
            lines = [Line(other, pair[0]) for other, pair in pairs.items()] if rank == 0 else [Line(0, self.ends[rank])]
            self.healths[rank] = Health(rank, PEERS, lines, options, self.told[rank].set)

    def loss_of(self, rank: int) -> health.Loss:
        assert self.told[rank].wait(LIMIT_S)
        loss = self.healths[rank].loss
        assert loss is not None
        return loss

    def close(self) -> None:
        for each in self.healths.values():
            each.close()
        for end in self.ends.values():
            end.close()


@pytest.fixture
def make_star():
    stars = []

    def make(*arguments) -> Star:
        stars.append(Star(*arguments))
        return stars[-1]

    yield make
    for star in stars:
        star.close()


@pytest.mark.parametrize("lost", [(2,), (0,), (1, 3)])
def test_what_another_has_found_out_is_told_to_all(make_star, lost):
    star = make_star((0, 1, 2))
    star.healths[0].declare(lost, "it hangs")
    for rank in (0, 1, 2):
        assert star.loss_of(rank) == health.Loss(lost, "is lost: it hangs")


def beat(end: socket.socket) -> None:
    end.sendall(b'{"kind": "beat"}\n')


def test_a_closed_connection_is_a_death_told_to_everybody(make_star):
    star = make_star((0, 1, 2))
    star.ends[3].close()
    for rank in (0, 1, 2):
        assert star.loss_of(rank).ranks == (3,)
        assert star.loss_of(rank).reason == "is lost: the process ended, its connection closed"


def test_silence_is_a_loss_told_to_everybody(make_star):
    star = make_star((0, 1, 2), QUICK)
    for rank in (0, 1, 2):
        assert star.loss_of(rank).ranks == (3,)
        assert "is lost: no sign of life for 1." in star.loss_of(rank).reason


def test_workers_that_fall_silent_together_are_named_together(make_star):
    star = make_star((0, 1), QUICK)
    assert star.loss_of(1).ranks == (2, 3)


def test_a_worker_watches_rank_0_by_itself(make_star):
    star = make_star((2,), QUICK)
    assert star.loss_of(2).ranks == (0,)


def test_whoever_gives_up_is_named_with_the_reason(make_star):
    star = make_star((0, 1, 2, 3))
    star.healths[2].give_up("ValueError: label 12 is out of range")
    for rank in range(4):
        assert star.loss_of(rank) == health.Loss((2,), "gave up: ValueError: label 12 is out of range")


def test_the_first_verdict_stays(make_star):
    star = make_star((0, 1))
    star.ends[3].close()
    assert star.loss_of(1).ranks == (3,)
    star.ends[2].close()
    star.healths[1].give_up("because of rank 3")
    assert star.healths[0].loss.ranks == (3,)
    assert star.healths[1].loss.ranks == (3,)


def test_leaving_is_no_loss_but_explains_what_breaks(make_star):
    star = make_star((0, 1, 2, 3))
    star.healths[3].close()
    cause = star.healths[1].cause((3,), LIMIT_S)
    assert cause == health.Loss((3,), "left the job before that was over")
    assert star.healths[1].cause((2,), 0.0) is None
    assert all(star.healths[rank].loss is None for rank in (0, 1, 2))


def test_rank_0_may_leave_first(make_star):
    star = make_star((0, 1, 2, 3), QUICK)
    star.healths[0].close()
    assert star.healths[1].cause((0,), LIMIT_S).ranks == (0,)
    assert star.healths[1].loss is None


def test_a_process_that_slept_blames_nobody(make_star, monkeypatch):
    """Rank 0's clock jumps by an hour between two looks, as after a suspend; the others were there all the time."""
    offset_s = [0.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + offset_s[0]

    monkeypatch.setattr(health, "time", Clock)
    star = make_star((0,), HealthOptions(interval_s=0.05, limit_s=2.0))
    for jump in range(3):
        offset_s[0] += 3600.0
        for rank in (1, 2, 3):
            beat(star.ends[rank])
            star.ends[rank].settimeout(LIMIT_S)
            assert b"beat" in star.ends[rank].recv(1 << 16), jump  # rank 0 has looked again and lives on
    assert star.healths[0].loss is None


def test_nonsense_is_ignored(make_star):
    star = make_star((0, 1))
    for line in (b"\xff\n", b"[]\n", b"{}\n", b'{"kind": "lost"}\n', b'{"kind": "bye", "rank": "x"}\n'):
        star.ends[2].sendall(line)
    star.ends[2].sendall(json.dumps({"kind": "lost", "ranks": [2, 99], "reason": "is tired"}).encode() + b"\n")
    assert star.loss_of(1) == health.Loss((2,), "is tired")


def test_a_flood_ends_the_connection(make_star):
    star = make_star((0, 1))
    star.ends[3].setblocking(False)
    deadline_s = time.monotonic() + LIMIT_S
    while not star.told[1].is_set() and time.monotonic() < deadline_s:
        with contextlib.suppress(BlockingIOError):
            star.ends[3].send(b"x" * 10_000)
    assert star.loss_of(1).ranks == (3,)
