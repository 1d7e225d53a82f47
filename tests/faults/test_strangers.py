"""A port scan, and random bytes at every open port of a running job, change nothing in its result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.case import BASE, MAX_ITER, blobs, copy_base, history, write_case
from tests.faults.ssh_lab import PORT, SshLab, address

NUM_ROUNDS = 3
LONG = 24 * MAX_ITER  # a scan of all ports takes ten seconds and more on a busy host, and the job must outlast it
# Runs on a host: looks which ports of a span answer; then for each place connects some times, sends bytes, waits for an
# answer or not, goes away.
THROW = """
import random, socket, sys
seed, first, last, *places = sys.argv[1:]
chance = random.Random(int(seed))
hosts = {place.rsplit(":", 1)[0] for place in places}
found = 0
for host in hosts:
    for port in range(int(first), int(last)):
        with socket.socket() as scanner:
            scanner.settimeout(1)
            found += scanner.connect_ex((host, port)) == 0
for place in places:
    host, port = place.rsplit(":", 1)
    for number in range(8):
        try:
            with socket.create_connection((host, int(port)), 1) as stranger:
                stranger.settimeout(0.01)
                stranger.sendall(chance.randbytes(chance.choice((1, 7, 64, 4000, 100_000))) if number else b"")
                stranger.recv(100)
        except OSError:
            pass
print("found", found, "thrown at", len(places), flush=True)
"""


def ports_of(lab: SshLab, host: int) -> list[str]:
    """What a host's processes listen on, besides sshd."""
    words = ["ip", "netns", "exec", lab.lab.host(host), "ss", "-Hltn"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[3] for line in lines if not line.split()[3].endswith(f":{PORT}")]


def write_long_case(folder: Path, iterations: int) -> None:
    folder.mkdir()
    write_case(folder)
    solver = folder / "solver.prototxt"
    solver.write_text(solver.read_text().replace(f"max_iter: {MAX_ITER}", f"max_iter: {iterations}"))


def visit(lab: SshLab, round_number: int, ports: list[str], last: int) -> int:
    """Strangers come from host 1; how many ports answered their scan of those up to `last`."""
    words = [sys.executable, "-c", THROW, str(round_number), "1", str(last), *ports]
    thrower = lab.lab.start(1, words, stdout=subprocess.PIPE)
    said = thrower.communicate()[0].split()
    assert said[2:] == [b"thrown", b"at", str(len(ports)).encode()]
    return int(said[1])


@pytest.mark.parametrize(
    ("words", "is_scan"),
    [
        (("--scheme=server",), False),
        pytest.param(("--scheme=server",), True, marks=pytest.mark.full),
        pytest.param(("--pattern=gpi",), True, marks=pytest.mark.full),
    ],
    ids=("server", "server, scanned", "gpi, scanned"),
)
def test_strangers_change_nothing(words, is_scan, tmp_path):
    iterations = LONG if is_scan else MAX_ITER
    calm, visited = tmp_path / "calm", tmp_path / "visited"
    for folder in (calm, visited):
        write_long_case(folder, iterations)
    with SshLab(calm, 2) as lab:
        running = lab.train(*words, hosts=lab.hosts(2, 1))
        assert running.wait() == 0, running.text
    copy_base(calm, visited)
    seen: set[str] = set()
    with SshLab(visited, 2) as lab:
        running = lab.train(*words, "--snapshot=auto", hosts=lab.hosts(2, 1))
        for round_number in range(NUM_ROUNDS):
            running.wait_for("rank 0: ", f"Iteration {BASE + 10 + 20 * round_number} (")
            ports = [port for host in range(2) for port in ports_of(lab, host)]
            seen.update(ports)
            num_found = visit(lab, round_number, ports, 65536 if is_scan and round_number == 0 else 1)
            assert round_number or not is_scan or num_found >= len(ports), "the scan found all that listens, and sshd"
            assert round_number or running.process.poll() is None, "the first visit was paid to a running job"
        assert running.wait() == 0, running.text
    assert blobs(visited, iterations) == blobs(calm, iterations)
    assert history(visited, iterations) == history(calm, iterations)
    assert any(port.startswith(address(0)) for port in seen), "rank 0 listens"
    assert all(port.startswith((address(0), address(1))) for port in seen), f"on the chosen interface only: {seen}"
