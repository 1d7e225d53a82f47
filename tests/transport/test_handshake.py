"""The handshake: who knows the secret comes in, who does not is dropped, whatever else is said."""

from __future__ import annotations

import socket
import threading

import pytest

from poseidon.errors import TransportError
from poseidon.transport import handshake
from poseidon.transport.handshake import MAGIC, Key, answer, call, make_secret

KEY = Key(b"of this job", "test")
LIMIT_S = 20.0


def pair(first: Key, second: Key, number: int = 3):
    """What the listener finds when a caller with another key comes, and the caller's error."""
    ours, theirs = socket.socketpair()
    found: list[int | None] = []
    thread = threading.Thread(target=lambda: (found.append(answer(ours, first)), ours.close()))
    thread.start()
    problem = None
    try:
        call(theirs, second, number)
    except TransportError as error:
        problem = error
    thread.join(LIMIT_S)
    theirs.close()
    return found[0], problem


def test_who_knows_the_secret_comes_in():
    assert pair(KEY, KEY) == (3, None)
    assert pair(KEY, KEY, 2**32 - 1) == (2**32 - 1, None)


@pytest.mark.parametrize("other", [Key(b"of another job", "test"), Key(b"of this job", "elsewhere"), Key(b"", "test")])
def test_who_does_not_is_refused_on_both_sides(other):
    found, problem = pair(KEY, other)
    assert found is None
    assert "POSEIDON_SECRET" in str(problem)


def test_a_listener_without_the_secret_is_found_out():
    ours, theirs = socket.socketpair()
    ours.sendall(MAGIC + bytes(32) + bytes(32))  # claims to have checked
    with pytest.raises(TransportError, match="does not know this job's secret"):
        call(theirs, KEY, 1)
    ours.close()
    theirs.close()


def test_something_else_that_answers_is_named():
    ours, theirs = socket.socketpair()
    ours.sendall(b"SSH-2.0-OpenSSH_9.2p1 and some more of what others say")
    with pytest.raises(TransportError, match="no worker of this version of Poseidon"):
        call(theirs, KEY, 1)
    ours.close()
    theirs.close()


def test_what_was_heard_once_is_of_no_use_again():
    """A recorded call is refused: the listener's half of the question is another one."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=answer, args=(ours, KEY))
    thread.start()
    recorded = []
    recv, send = theirs.recv(40), theirs.sendall
    nonce = bytes(32)
    said = handshake._CALL.pack(MAGIC, nonce, 1, KEY.proof(b"caller", recv[8:], nonce, 1))
    send(said)
    recorded.append(said)
    assert len(theirs.recv(32)) == 32
    thread.join(LIMIT_S)
    again, caller = socket.socketpair()
    found = []
    thread = threading.Thread(target=lambda: found.append(answer(again, KEY)))
    thread.start()
    caller.sendall(recorded[0])
    thread.join(LIMIT_S)
    assert found == [None]
    for end in (ours, theirs, again, caller):
        end.close()


def test_secrets_are_long_and_new():
    assert len({make_secret() for _ in range(10)}) == 10
    assert all(len(make_secret()) == 64 for _ in range(3))


def test_a_key_shown_in_a_traceback_keeps_its_secret():
    assert "of this job" not in repr(KEY)
