"""Random bytes at every open port of a running job change nothing in its result."""

from __future__ import annotations

import subprocess
import sys

from tests.faults.case import MAX_ITER, blobs, copy_base, history, write_case
from tests.faults.ssh_lab import PORT, SshLab, address

NUM_ROUNDS = 3
# Runs on a host: for each port connects some times, sends bytes, waits for an answer or not, goes away.
THROW = """
import random, socket, sys
chance = random.Random(int(sys.argv[1]))
for place in sys.argv[2:]:
    host, port = place.rsplit(":", 1)
    for number in range(8):
        try:
            with socket.create_connection((host, int(port)), 1) as stranger:
                stranger.settimeout(0.05)
                stranger.sendall(chance.randbytes(chance.choice((1, 7, 64, 4000, 100_000))) if number else b"")
                stranger.recv(100)
        except OSError:
            pass
print("thrown", len(sys.argv) - 2, flush=True)
"""


def ports_of(lab: SshLab, host: int) -> list[str]:
    words = ["ip", "netns", "exec", lab.lab.host(host), "ss", "-Hltn"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[3] for line in lines if not line.split()[3].endswith(f":{PORT}")]


def test_strangers_change_nothing(tmp_path):
    calm, visited = tmp_path / "calm", tmp_path / "visited"
    for folder in (calm, visited):
        folder.mkdir()
        write_case(folder)
    with SshLab(calm, 2) as lab:
        running = lab.train("--scheme=server")
        assert running.wait() == 0, running.text
    copy_base(calm, visited)
    seen: set[str] = set()
    with SshLab(visited, 2) as lab:
        running = lab.train("--scheme=server", "--snapshot=auto")
        for round_number in range(NUM_ROUNDS):
            running.wait_for("rank 0: ", f"Iteration {40 + 20 * round_number} (")
            ports = [port for host in range(2) for port in ports_of(lab, host)]
            seen.update(ports)
            thrower = lab.lab.start(1, [sys.executable, "-c", THROW, str(round_number), *ports], stdout=-1)
            assert thrower.communicate()[0] == f"thrown {len(ports)}\n".encode()
        assert running.wait() == 0, running.text
    assert blobs(visited, MAX_ITER) == blobs(calm, MAX_ITER)
    assert history(visited, MAX_ITER) == history(calm, MAX_ITER)
    assert any(port.startswith(address(0)) for port in seen), "rank 0 listens"
    assert all(port.startswith((address(0), address(1))) for port in seen), f"on the chosen interface only: {seen}"
