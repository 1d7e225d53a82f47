"""A peer that says goodbye and is gone before this end has read it: what cannot be sent any more is no loss then."""

from __future__ import annotations

import errno
import socket
import time

import pytest

from poseidon.transport.onesided.carrier import MOST_URGENT
from poseidon.transport.onesided.frames import BEAT, BYE, header
from poseidon.transport.onesided.native import FRAME, ODD_FRAME

native = pytest.importorskip("poseidon.transport.native._mesh", reason="needs a C compiler")


def over_tcp():
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return one, other


@pytest.mark.parametrize("connect", [over_tcp, socket.socketpair], ids=["tcp", "unix"])
@pytest.mark.parametrize("says_goodbye", [True, False])
def test_what_was_said_last_is_heard_although_nothing_can_be_sent(connect, says_goodbye):
    one, other = connect()
    mesh = native.Mesh(2)
    mesh.connect(1, one.fileno())
    if says_goodbye:
        other.sendall(header(BYE))
    other.close()
    for _ in range(3):  # over TCP the first one still goes; the answer to it says that nobody is there
        mesh.say(1, BEAT, 0, 0, 0, 0, b"", *MOST_URGENT)
    heard = []
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s and not any(what not in (FRAME, ODD_FRAME) for _, what, *_ in heard):
        heard += mesh.serve(0.05)
    assert [fields[0] for _, what, _, fields, _ in heard if what == FRAME] == [BYE] * says_goodbye
    ends = [error for _, what, error, _, _ in heard if what not in (FRAME, ODD_FRAME)]
    assert len(ends) == 1
    assert ends[0] in (0, errno.EPIPE, errno.ECONNRESET)
    mesh.close()
    one.close()
