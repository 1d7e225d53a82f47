"""Doctor on lab hosts that each have something wrong with them: it finds every one of these, and says what to do."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest

import poseidon
from tests.faults.case import write_case
from tests.faults.ssh_lab import SshLab, address

BUSY_PORT = 29999
LISTEN = f"import socket; s = socket.create_server(('{address(0)}', {BUSY_PORT})); print('up', flush=True); s.accept()"
SHIFT = "import time as t; now = t.time; t.time = lambda: now() + 61\n"


def bind(source: Path, target: Path | str) -> str:
    return f"mount --bind {source} {target}"


def write_hosts(folder: Path) -> dict[int, list[str]]:
    """What is mounted over on each host."""
    write_case(folder)
    for name in ("snaps", "site", "data"):
        (folder / name).mkdir()
    for name, old, new in (("solver", '"snap"', '"snaps/s"'), ("net", '"test.txt"', '"data/test.txt"')):
        path = folder / f"{name}.prototxt"
        path.write_text(path.read_text().replace(old, new))
    (folder / "test.txt").rename(folder / "data" / "test.txt")
    (folder / "site" / "sitecustomize.py").write_text("")
    (folder / "shift.py").write_text(SHIFT)
    own = Path(poseidon.__file__)
    (folder / "init.py").write_text(own.read_text().replace(poseidon.__version__, "9.9.9"))
    metadata = Path(str(importlib.metadata.distribution("torch")._path)) / "METADATA"  # type: ignore[attr-defined]
    version = importlib.metadata.version("torch")
    (folder / "metadata").write_text(metadata.read_text().replace(f"Version: {version}", "Version: 1.0.0", 1))
    (folder / "empty").mkdir()
    return {
        1: [bind(folder / "init.py", own)],
        2: [bind(folder / "metadata", metadata), f"mount -t tmpfs -o size=64k none {folder}/snaps"],
        3: [
            bind(folder / "empty", folder / "data"),
            bind(folder / "shift.py", folder / "site/sitecustomize.py"),
        ],
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """One visit to five hosts, two names that lead nowhere among them."""
    folder = tmp_path_factory.mktemp("doctor")
    mounts = write_hosts(folder)
    rates = ("300mbit", "300mbit", "300mbit", "300mbit", "20mbit")
    with SshLab(folder, 5, rates=rates, mounts=mounts) as lab:
        busy = lab.lab.start(0, [sys.executable, "-c", LISTEN], stdout=-1)
        assert busy.stdout.readline() == b"up\n"
        hosts = f"{lab.hosts()},10.77.0.99,no-such-host.invalid"
        words = ("doctor", f"--hosts={hosts}", f"--ssh={lab.ssh}", "--solver=solver.prototxt", f"--port={BUSY_PORT}")
        path = f"{folder}/site:{Path(__file__).parents[2]}"
        running = lab.start(*words, "--json", PYTHONPATH=path)
        assert running.wait() == 1, running.text
        loopback = lab.start(*words[:3], "--interface=lo")
        assert loopback.wait() == 1
        busy.kill()
        busy.wait()
    return {**json.loads(running.text), "loopback": loopback.text}


def problem(found: dict, *words: str) -> str:
    (line,) = [line for line in found["problems"] if all(word in line for word in words)]
    return line


def test_a_name_that_does_not_resolve(found):
    assert "Could not resolve hostname" in problem(found, "host no-such-host.invalid", "cannot be reached by ssh")
    assert len([line for line in found["problems"] if "does not resolve the name no-such-host.invalid" in line]) == 5


def test_a_host_that_cannot_be_reached(found):
    assert "try `ssh " in problem(found, "host 10.77.0.99", "cannot be reached by ssh")


def test_another_version_of_poseidon(found):
    assert "install the same version" in problem(found, f"host {address(1)}", "has Poseidon 9.9.9")


def test_another_torch(found):
    assert "install the same version" in problem(found, f"host {address(2)}", "has PyTorch 1.0.0")


def test_a_missing_data_file(found):
    assert "copy it there" in problem(found, f"host {address(3)}", "has no data/test.txt")


def test_a_port_in_use(found):
    assert "Address already in use" in problem(found, f"host {address(0)}", f"cannot listen on port {BUSY_PORT}")


def test_a_slow_link(found):
    assert "check its cable" in problem(found, f"host {address(4)} has slow links", "Mbit/s is usual")
    assert len(found["links"]) == 5 * 4
    slow = [link["bps"] for link in found["links"] if address(4) in (link["from"], link["to"])]
    usual = [link["bps"] for link in found["links"] if address(4) not in (link["from"], link["to"])]
    assert 10e6 < max(slow) < 30e6
    assert max(slow) * 3 < min(usual)


def test_a_clock_that_is_off(found):
    assert "chrony" in problem(found, f"host {address(3)}", "has a clock 61", "ahead of this host's")


def test_a_full_disk(found):
    assert "snapshots go" in problem(found, f"host {address(2)}", "free")


def test_loopback_as_interface(found):
    assert "loopback interface" in found["loopback"]
    assert "which only reaches this host" in found["loopback"]


def test_nothing_else_is_found(found):
    assert len(found["problems"]) == 5 + 2 + 7, "\n".join(found["problems"])
