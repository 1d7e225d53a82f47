"""netlab: what it asks of tc, and, where this machine allows namespaces, a real lab from beginning to end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from bench.netlab import Lab, Links, existing_hosts, main, rate_bps, require_root


def can_build() -> bool:
    """Root alone does not suffice: containers often may not make namespaces."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "unshare"))):
        return False
    name = f"try{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made


def test_rates():
    assert [rate_bps(text) for text in ("1gbit", "200mbit", "2.5gbit", "56kbit")] == [1e9, 2e8, 2.5e9, 56e3]
    with pytest.raises(SystemExit, match="a rate looks like 1gbit, 200mbit or 500kbit, got 'fast'"):
        rate_bps("fast")


def test_links_are_shaped_round_robin_with_a_millisecond_of_burst():
    links = Links(("10gbit", "100mbit", "none"))
    assert links.shape_of(0) == ["root", "tbf", "rate", "10gbit", "burst", "1250000", "latency", "20ms"]
    assert links.shape_of(4) == ["root", "tbf", "rate", "100mbit", "burst", "128000", "latency", "20ms"]
    assert links.shape_of(5) is None
    assert Links(("1gbit",), burst="64kb").shape_of(0)[5] == "64kb"


def test_a_command_sees_its_place():
    seen = Lab("lab", 4, port=4711).environment(2)
    assert [seen[key] for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == ["2", "4", "0", "1"]
    assert [seen[key] for key in ("MASTER_ADDR", "MASTER_PORT")] == ["10.77.0.1", "4711"]


@pytest.mark.parametrize("words", [["run"], ["run", "--"], ["exec", "--", "true"], ["cut"], ["mend"], ["explode"]])
def test_incomplete_commands_are_refused(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "netlab: error:" in capsys.readouterr().err


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="network namespaces need root; run it with sudo"):
        main(["run", "-n", "2", "--", "true"])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    with pytest.raises(SystemExit, match="ip, tc, unshare not found"):
        require_root()


TALK = """
import os, socket
rank = int(os.environ["RANK"])
assert socket.gethostname().endswith(f"-h{rank}")
if rank == 0:
    with socket.create_server(("10.77.0.1", 4712)) as server:
        peer, address = server.accept()
        assert address[0] == "10.77.0.2"
        print(peer.recv(100).decode())
else:
    while True:
        try:
            socket.create_connection(("10.77.0.1", 4712), 20).sendall(b"hello over the wire")
            break
        except ConnectionRefusedError:
            pass
"""


@pytest.mark.skipif(not can_build(), reason="needs root and the right to make network namespaces")
def test_a_lab_from_beginning_to_end(capfd):
    name = f"tl{os.getpid()}"
    with Lab(name, 2, Links(("100mbit",))) as lab:
        assert sorted(existing_hosts(name)) == [f"{name}-h0", f"{name}-h1"]
        assert lab.run([sys.executable, "-c", TALK], grace_s=20.0) == 0
        assert capfd.readouterr().out == "hello over the wire\n"
        assert all(sent > 0 for sent in lab.sent_bytes())
        assert lab.run(["sh", "-c", "test $RANK = 0 || exit 3; sleep 60"], grace_s=0.1) == 3
        lab.cut(1)
        unreachable = "import socket; socket.create_connection(('10.77.0.1', 4712), 0.3)"
        assert lab.start(1, [sys.executable, "-c", unreachable], stderr=subprocess.DEVNULL).wait(20) == 1
    assert existing_hosts(name) == []


@pytest.mark.skipif(not can_build(), reason="needs root and the right to make network namespaces")
def test_a_lab_that_cannot_be_built_leaves_nothing_behind():
    name = f"tl{os.getpid()}"
    with (
        pytest.raises(SystemExit, match=r"`tc .* rate 1gbit burst nonsense .*` failed"),
        Lab(name, 2, Links(burst="nonsense")),
    ):
        pass
    assert existing_hosts(name) == []


@pytest.mark.skipif(not can_build(), reason="needs root and the right to make network namespaces")
def test_an_error_inside_takes_the_lab_away_with_what_runs_in_it():
    name = f"tl{os.getpid()}"
    sleeping = []

    def fail() -> None:
        with Lab(name, 1) as lab:
            sleeping.append(lab.start(0, ["sleep", "60"]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert existing_hosts(name) == []
    assert sleeping[0].wait(20) != 0
