"""Joining: missing and mismatched workers are named; strangers at the health port are shown the door."""

from __future__ import annotations

import errno
import json
import socket
import threading

import pytest
import torch.distributed as dist

from poseidon.errors import JoinFailed, TransportError, TransportTimeout
from poseidon.run.exits import LOST_ANOTHER, code_of
from poseidon.transport import door, handshake, joining
from poseidon.transport.base import Peer
from poseidon.transport.handshake import Key, call
from poseidon.transport.joining import agree_on_round, meet_peers, open_lines

LIMIT_S = 20.0
# What a caller may find that has more to say than anybody wants to hear.
SHOWN_THE_DOOR = (errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE)
PEERS = tuple(Peer(rank, "here", 1) for rank in range(3))


def in_thread(function, *arguments):
    """Runs a worker's part on a thread; calling what is returned gives its result or raises its error."""
    answers = []

    def run() -> None:
        try:
            answers.append((function(*arguments), None))
        except Exception as error:  # handed to the test
            answers.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()

    def result():
        thread.join(LIMIT_S)
        value, error = answers[0]
        if error is not None:
            raise error
        return value

    return result


def test_everybody_is_met():
    store = dist.HashStore()
    results = [in_thread(meet_peers, store, rank, 3, LIMIT_S) for rank in range(3)]
    peers = [result() for result in results]
    assert peers[0] == peers[1] == peers[2]
    assert [peer.rank for peer in peers[0]] == [0, 1, 2]
    assert {peer.host for peer in peers[0]} == {socket.gethostname()}


def test_workers_that_use_a_store_after_others_do_not_meet_those():
    """Three rounds in one store, with fewer or more workers, and calls of some that died before they were answered."""
    store, words = dist.HashStore(), []
    for size in (3, 2, 4):
        store.set(f"call/{store.add('calls', 1)}", "of one who is gone")
        results = [in_thread(agree_on_round, store, rank, size, LIMIT_S) for rank in reversed(range(size))]
        found = {result() for result in results}
        assert len(found) == 1, "all have the same word"
        words += found
        mine = dist.PrefixStore(words[-1], store)
        met = [in_thread(meet_peers, mine, rank, size, LIMIT_S) for rank in range(size)]
        assert all(len(result()) == size for result in met)
    assert len(set(words)) == 3


def test_rank_0_that_does_not_come_is_missed():
    with pytest.raises(TransportTimeout, match=r"rank 1: rank 0 has not joined the job within 0\.2 s"):
        agree_on_round(dist.HashStore(), 1, 2, 0.2)


def test_missing_workers_are_named():
    store = dist.HashStore()
    first = in_thread(meet_peers, store, 0, 4, 0.3)
    second = in_thread(meet_peers, store, 2, 4, 0.3)
    for result in (first, second):
        with pytest.raises(TransportTimeout, match=r"rank\(s\) 1, 3 of 4 have not joined the job") as caught:
            result()
        assert caught.value.ranks == (1, 3)


def test_another_number_of_workers_is_refused_on_both_sides():
    store = dist.HashStore()
    waiting = in_thread(meet_peers, store, 0, 2, LIMIT_S)
    store.wait(["size"])
    with pytest.raises(TransportError, match="rank 1 was started for 3 workers, others for 2; start all workers with"):
        meet_peers(store, 1, 3, LIMIT_S)
    with pytest.raises(TransportError, match=r"rank 0 was started for 2 workers, rank 1 on host .* for 3"):
        waiting()


@pytest.mark.parametrize("secret", [b"", b"of this job"])
def test_strangers_are_turned_away(secret):
    store = dist.HashStore()
    hub = in_thread(open_lines, store, 0, PEERS, "127.0.0.1", LIMIT_S, secret)
    store.wait(["health"])
    place = json.loads(store.get("health").decode().partition(" ")[2] if secret else store.get("health"))
    assert bool(place["token"]) != bool(secret)  # the secret is in nobody's store
    port = place["port"]
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 200, b""):
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as stranger:
            try:
                stranger.sendall(greeting)
                stranger.shutdown(socket.SHUT_WR)
                assert len(stranger.recv(1000)) in (0, 40)
                assert stranger.recv(1) == b""
            except OSError as error:
                if error.errno not in SHOWN_THE_DOOR:
                    raise
    key = Key(secret or place["token"].encode(), "health")
    guess = socket.create_connection(("127.0.0.1", port), LIMIT_S)
    with guess, pytest.raises(TransportError, match="does not know this job's secret"):
        call(guess, Key(b"guessed", "health"), 1)
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as placeless:
        call(placeless, key, 7)
        assert placeless.recv(1) == b""
    members = [open_lines(store, rank, PEERS, "127.0.0.1", LIMIT_S, secret) for rank in (1, 2)]
    lines = hub()
    assert [line.rank for line in lines] == [1, 2]
    members[1][0].socket.sendall(b"hello")
    assert lines[1].socket.recv(5) == b"hello"
    for line in (*lines, *members[0], *members[1]):
        line.socket.close()


def test_a_member_that_finds_no_place_calls_again(monkeypatch):
    """Strangers have all places, until they leave."""
    monkeypatch.setattr(door, "MOST_HEARD", 0)
    store = dist.HashStore()
    hub = in_thread(open_lines, store, 0, PEERS, "127.0.0.1", LIMIT_S)
    store.wait(["health"])
    place = json.loads(store.get("health"))
    silent = [socket.create_connection((place["address"], place["port"]), LIMIT_S) for _ in range(2)]
    assert [len(end.recv(40)) for end in silent] == [40, 40], "both are being heard"
    turned = threading.Event()
    pause = handshake.time.sleep
    monkeypatch.setattr(handshake.time, "sleep", lambda seconds: (turned.set(), pause(seconds)))
    members = [in_thread(open_lines, store, rank, PEERS, "127.0.0.1", LIMIT_S) for rank in (1, 2)]
    assert turned.wait(LIMIT_S), "a member was turned away"
    for end in silent:
        end.close()
    lines = [*hub(), *(line for member in members for line in member())]
    assert [line.rank for line in lines] == [1, 2, 0, 0]
    for line in lines:
        line.socket.close()


def test_loopback_is_refused_if_a_worker_is_on_another_host():
    peers = (Peer(0, "here", 1), Peer(1, "there", 1))
    for rank in range(2):
        with pytest.raises(
            TransportError, match=r"at 127\.0\.0\.1, on the loopback interface, but rank . .* another host"
        ):
            open_lines(dist.HashStore(), rank, peers, "127.0.0.1", LIMIT_S)


def test_a_health_port_that_refuses_is_a_problem_that_passes():
    store = dist.HashStore()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    store.set("health", json.dumps({"address": "127.0.0.1", "port": port, "token": "x"}))
    with pytest.raises(JoinFailed, match="rank 1 cannot reach rank 0") as caught:
        open_lines(store, 1, PEERS, "127.0.0.1", LIMIT_S)
    assert code_of(caught.value) == LOST_ANOTHER


def test_entries_of_the_store_are_sealed_with_the_secret():
    store = dist.HashStore()
    (peer,) = meet_peers(store, 0, 1, LIMIT_S, b"mine")
    assert peer.host == socket.gethostname()
    with pytest.raises(TransportError, match="entry of rank 0 in the job's store was not written with this job's sec"):
        joining._unsealed(store.get("peer/0"), b"another's", "rank 0")
    with pytest.raises(TransportError, match=r"cannot be read: .*all or none of them with POSEIDON_SECRET"):
        joining._unsealed(store.get("peer/0"), b"", "rank 0")


def test_workers_that_cannot_reach_the_health_port_are_named():
    store = dist.HashStore()
    hub = in_thread(open_lines, store, 0, PEERS, "127.0.0.1", 0.3)
    with pytest.raises(TransportTimeout, match=r"was not reached by rank 1 \(host here, pid 1\), rank 2") as caught:
        hub()
    assert caught.value.ranks == (1, 2)
    with pytest.raises(TransportError, match=r"rank 1 cannot reach rank 0 .*check the network interface and firewall"):
        open_lines(store, 1, PEERS, "127.0.0.1", LIMIT_S)
    with pytest.raises(TransportTimeout, match=r"rank 0 .* has not opened its health port"):
        open_lines(dist.HashStore(), 1, PEERS, "127.0.0.1", 0.1)


def test_a_job_of_one_needs_no_lines():
    assert open_lines(dist.HashStore(), 0, PEERS[:1], "127.0.0.1", LIMIT_S) == []
