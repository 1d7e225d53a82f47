"""The door: members come in, strangers are dropped and counted, and nobody holds up anybody."""

from __future__ import annotations

import random
import socket
import threading
import time

from poseidon.transport import door as door_module
from poseidon.transport.door import Door, listen
from poseidon.transport.handshake import Key, call

KEY = Key(b"of this job", "test")
LIMIT_S = 20.0


def opened(num_members: int = 0) -> tuple[Door, tuple[str, int]]:
    listener = listen("127.0.0.1")
    address = listener.getsockname()
    return Door([listener], KEY, num_members), address


def test_a_door_counts_strangers_and_lets_members_in(caplog):
    chance = random.Random(1)
    door, address = opened()
    silent = [socket.create_connection(address) for _ in range(10)]  # they hold up nobody
    for _ in range(20):
        with socket.create_connection(address) as stranger:
            stranger.sendall(chance.randbytes(chance.randrange(500)))
    member = socket.create_connection(address)
    call(member, KEY, 5)
    number, connection = door.admit(LIMIT_S)
    assert number == 5
    connection.sendall(b"welcome")
    assert member.recv(7) == b"welcome"
    for end in (member, connection, *silent):
        end.close()
    while door.num_strangers < 30:
        assert door.admit(0.01) is None
    door.close()
    (told,) = caplog.messages
    assert told.startswith("30 connection(s) to ('127.0.0.1', ")


def test_of_too_many_at_once_the_rest_is_dropped(monkeypatch):
    monkeypatch.setattr(door_module, "MOST_HEARD", 2)
    door, address = opened()
    silent = [socket.create_connection(address) for _ in range(2)]
    assert [len(end.recv(40)) for end in silent] == [40, 40]  # both are being heard
    with socket.create_connection(address) as late:
        assert late.recv(1) == b""
    assert door.num_strangers == 1
    for end in silent:
        end.close()
    door.close()


def test_members_have_places_besides_those_of_strangers(monkeypatch):
    monkeypatch.setattr(door_module, "MOST_HEARD", 1)
    door, address = opened(num_members=3)
    callers = [socket.create_connection(address) for _ in range(4)]
    assert [len(end.recv(40)) for end in callers] == [40] * 4  # all are being heard
    with socket.create_connection(address) as late:
        assert late.recv(1) == b""
    for end in callers:
        end.close()
    door.close()


def test_one_door_has_several_sockets():
    near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    near.bind("\0poseidon-test-door")
    near.listen()
    far = listen("127.0.0.1")
    address = far.getsockname()
    door = Door([near, far], KEY, 2)
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    local.connect("\0poseidon-test-door")
    call(local, KEY, 1)
    remote = socket.create_connection(address)
    call(remote, KEY, 2)
    members = dict(door.members([1, 2], time.monotonic() + LIMIT_S))
    assert (members[1].family, members[2].family) == (socket.AF_UNIX, socket.AF_INET)
    for end in (local, remote, *members.values()):
        end.close()
    door.close()


def test_who_has_no_place_or_comes_again_is_turned_away():
    door, address = opened()
    callers = []
    for number in (7, 1, 1, 2):
        callers.append(socket.create_connection(address))
        call(callers[-1], KEY, number)
    found = dict(door.members([1, 2], time.monotonic() + LIMIT_S))
    assert sorted(found) == [1, 2]
    let_in = {member.getpeername() for member in found.values()}  # of two that say 1, whoever was heard first
    refused = [caller for caller in callers if caller.getsockname() not in let_in]
    assert len(refused) == 2
    assert callers[0] in refused
    for caller in refused:
        caller.settimeout(LIMIT_S)
        assert caller.recv(1) == b""
    for end in (*callers, *found.values()):
        end.close()
    door.close()


def test_those_who_do_not_come_in_time_are_not_waited_for():
    door, address = opened()
    with socket.create_connection(address) as caller:
        call(caller, KEY, 1)
        found = list(door.members([1, 2], time.monotonic() + 0.2))
        assert [number for number, _ in found] == [1]
        found[0][1].close()
    door.close()


def test_nothing_of_a_door_is_left_when_it_is_closed():
    door, address = opened()
    with socket.create_connection(address) as late:
        call(late, KEY, 1)  # let in, never asked for
        door.close()
        assert late.recv(1) == b""
    assert not [thread for thread in threading.enumerate() if thread.name == "door"]
