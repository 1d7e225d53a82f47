"""Memory without a name, handed from process to process, and semaphores in it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from poseidon.errors import TransportError
from poseidon.transport import shared_memory
from poseidon.transport.shared_memory import SEMAPHORE_BYTES, Counter, Segment, fetch


def in_another_process(act) -> int:
    """The exit code of a fork that runs `act`: 0 if it returned true."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if act() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def handed_out(segment: Segment, descriptor: int, num: int = 1, timeout_s: float = 10.0):
    """The word to ask with, and the thread that hands out."""
    counter = Counter()
    thread = threading.Thread(target=counter.hand_out, args=(descriptor, segment.num_bytes, num, timeout_s))
    thread.start()
    return counter.word, thread


def test_who_knows_the_word_sees_the_same_memory():
    with Segment.create(1 << 20) as (segment, descriptor):
        word, thread = handed_out(segment, descriptor)
        other = fetch(word, 10.0)
        thread.join()
    segment.memory[70_000] = 7
    assert other.memory[70_000] == 7
    assert other.num_bytes == 1 << 20
    assert other.memory.data_ptr() != segment.memory.data_ptr()


def test_it_has_no_name_and_costs_nothing_until_it_is_used():
    before = set(Path("/dev/shm").iterdir())
    with Segment.create(1 << 40) as (segment, _):
        assert set(Path("/dev/shm").iterdir()) == before
        segment.memory[-1] = 1
        assert segment.memory[-1] == 1


def test_another_word_gets_nothing():
    with Segment.create(4096) as (segment, descriptor):
        word, thread = handed_out(segment, descriptor)
        with pytest.raises(TransportError, match="cannot fetch this host's shared memory"):
            fetch("0" * len(word), 1.0)
        with shared_memory.socket.socket(shared_memory.socket.AF_UNIX) as stranger:
            stranger.connect(shared_memory._address(word))
            stranger.sendall(b"1" * len(word))
            assert stranger.recv(1) == b""
        fetch(word, 10.0)
        thread.join()


def test_who_does_not_come_is_missed():
    with Segment.create(4096) as (segment, descriptor):
        counter = Counter()
        with pytest.raises(TransportError, match=r"2 worker\(s\) of this host did not fetch"):
            counter.hand_out(descriptor, segment.num_bytes, 2, 0.05)


def test_semaphores_count_across_processes():
    with Segment.create(4096) as (segment, descriptor):
        there, back = segment.semaphore(0), segment.semaphore(SEMAPHORE_BYTES)
        there.prepare(1)
        back.prepare()
        word, thread = handed_out(segment, descriptor)

        def act() -> bool:
            other = fetch(word, 10.0)
            theirs, mine = other.semaphore(0), other.semaphore(SEMAPHORE_BYTES)
            seen = [theirs.wait(10.0), theirs.wait(10.0), theirs.wait(0.01)]
            other.memory[100] = 42
            mine.post()
            return seen == [True, True, False]

        there.post()
        assert in_another_process(act) == 0
        assert back.wait(10.0)
        assert segment.memory[100] == 42
        assert not back.wait(0.0)
        thread.join()


def test_a_semaphore_wakes_who_waits():
    with Segment.create(4096) as (segment, _):
        semaphore = segment.semaphore(64)
        semaphore.prepare()
        woken = []
        thread = threading.Thread(target=lambda: woken.append(semaphore.wait(30.0)))
        thread.start()
        semaphore.post()
        thread.join()
        assert woken == [True]


def test_without_such_memory_it_says_so(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(TransportError, match="needs Linux"), Segment.create(4096):
        pass


def test_tensors_lie_in_it():
    with Segment.create(4096) as (segment, _):
        view = segment.memory[64:128].view(torch.float32)
        view.fill_(1.5)
        assert segment.memory[64:68].view(torch.float32).item() == 1.5
