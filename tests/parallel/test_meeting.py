"""How the workers of a Parallel meet: with the job's secret, on its interface."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from poseidon.errors import UsageError
from poseidon.parallel import meeting

SECRET = "0123456789abcdef0123456789abcdef"
JOB = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


@pytest.fixture
def told(monkeypatch):
    """What the transport is told, by whichever way workers meet."""
    seen = []
    monkeypatch.setattr(meeting, "connect", lambda rank, size, master, options: seen.append(options))
    monkeypatch.setattr(meeting, "from_group", lambda group, options, device: seen.append(options))
    monkeypatch.setattr(os, "environ", {**JOB, "MASTER_PORT": "29500", "POSEIDON_SECRET": SECRET})
    return seen


def test_secret_of_a_job_that_the_environment_tells_of(told):
    meeting.meet(None, torch.device("cpu"))
    assert told[0].secret == SECRET.encode()
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"


def test_secret_beside_a_process_group(told, monkeypatch):
    monkeypatch.setattr(meeting.dist, "get_backend", lambda group: "gloo")
    monkeypatch.setattr(meeting, "_hosts", lambda group, device: ["host", "host"])
    meeting.meet(SimpleNamespace(size=lambda: 2), torch.device("cpu"))
    assert told[0].secret == SECRET.encode()


def test_a_secret_that_is_too_short_is_refused(told):
    os.environ["POSEIDON_SECRET"] = "short"
    with pytest.raises(UsageError, match="POSEIDON_SECRET is to have at least"):
        meeting.meet(None, torch.device("cpu"))
    assert not told
