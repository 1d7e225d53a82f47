"""The in-process transport: strict rules, losses, and run_workers, which never hangs."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from poseidon.errors import PeerLost, TransportError, TransportTimeout
from poseidon.transport.inproc import InprocTransport, run_workers


def test_results_come_by_rank():
    assert run_workers(5, lambda transport: transport.rank * 10) == [0, 10, 20, 30, 40]


def test_sums_are_taken_in_rank_order():
    """0.1 + 1e8 − 1e8 in float32: only the order of ranks gives these bits."""
    contributions = [np.float32(0.1), np.float32(1e8), np.float32(-1e8), np.float32(0.3)]

    def work(transport: InprocTransport) -> float:
        tensor = torch.tensor([contributions[transport.rank]])
        transport.all_reduce(tensor).wait()
        return tensor.item()

    expected = contributions[0]
    for value in contributions[1:]:
        expected = np.float32(expected + value)
    assert expected != np.float32(np.sum(np.array(contributions, dtype=np.float64)))
    assert run_workers(4, work) == [float(expected)] * 4


def test_a_send_is_over_no_sooner_than_its_receive_is_posted():
    posted = threading.Event()

    def work(transport: InprocTransport) -> None:
        if transport.rank == 0:
            sending = transport.send(torch.ones(3), 1, 0)
            assert not sending.done()
            posted.set()
            sending.wait()
        else:
            assert posted.wait(20.0)
            transport.recv(torch.zeros(3), 0, 0).wait()

    run_workers(2, work)


def test_the_first_failure_is_raised_and_the_others_are_told():
    told = {}

    def work(transport: InprocTransport) -> None:
        if transport.rank == 1:
            raise ValueError("label 12 is out of range")
        try:
            transport.all_reduce(torch.ones(4)).wait()
        except PeerLost as error:
            told[transport.rank] = error
            raise

    with pytest.raises(ValueError, match="label 12"):
        run_workers(3, work, hosts=["a", "b", "c"])
    assert set(told) == {0, 2}
    for error in told.values():
        assert error.ranks == (1,)
        assert str(error).startswith("rank 1 (host b, pid ")
        assert "gave up: ValueError: label 12 is out of range; while in the all-reduce of 16 B" in str(error)


def test_operations_started_after_a_loss_fail_at_once():
    def work(transport: InprocTransport) -> None:
        if transport.rank == 0:
            transport.abort("no more data")
            return
        with pytest.raises(PeerLost):
            transport.recv(torch.zeros(1), 0, 0).wait()
        with pytest.raises(PeerLost, match="no more data"):
            transport.send(torch.zeros(1), 3 - transport.rank, 0)

    run_workers(3, work)


def test_leaving_in_peace_is_told_to_those_who_wait_for_it_only():
    def work(transport: InprocTransport) -> None:
        if transport.rank == 1:
            return
        if transport.rank == 0:
            with pytest.raises(PeerLost, match=r"rank 1 .* left the job before that was over; while receiving") as told:
                transport.recv(torch.zeros(2), 1, 0).wait()
            assert told.value.ranks == (1,)
        other = 2 - transport.rank
        work = transport.recv(torch.zeros(2), other, 5)
        transport.send(torch.ones(2), other, 5).wait()
        work.wait()

    run_workers(3, work)


def test_stuck_workers_are_named_with_their_place():
    release = threading.Event()

    def work(transport: InprocTransport) -> None:
        if transport.rank == 1:
            stuck_here(release)

    with pytest.raises(
        TransportTimeout, match=r"did not finish within 0.2 s: rank 1 in .*test_inproc.py:\d+ \(stuck_h"
    ) as caught:
        run_workers(2, work, timeout_s=0.2)
    release.set()
    assert caught.value.ranks == (1,)


def stuck_here(release: threading.Event) -> None:
    release.wait(30.0)


def test_members_that_disagree_are_told():
    def reduce(transport: InprocTransport) -> None:
        transport.all_reduce(torch.ones(4 + transport.rank)).wait()

    with pytest.raises(
        TransportError, match=r"members differ: 4 × torch.float32 on rank 0, 5 × torch.float32 on rank 1"
    ):
        run_workers(2, reduce)

    def exchange(transport: InprocTransport) -> None:
        if transport.rank == 0:
            transport.send(torch.ones(4), 1, 0).wait()
        else:
            transport.recv(torch.ones(4, dtype=torch.float64), 0, 0).wait()

    with pytest.raises(TransportError, match=r"4 × torch.float32 sent, 4 × torch.float64 expected by the receiver"):
        run_workers(2, exchange)


def test_barriers_and_closing_twice_count_nothing():
    def work(transport: InprocTransport) -> tuple[int, int]:
        transport.barrier(20.0)
        counted = transport.bytes_sent, transport.bytes_received
        transport.close()
        transport.close()
        return counted

    assert run_workers(3, work) == [(0, 0)] * 3
