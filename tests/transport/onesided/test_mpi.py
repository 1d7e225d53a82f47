"""By MPI: what is said where it is not there. (What it does is tried by hand: docs/caffegpi.md.)"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from poseidon.errors import TransportError
from poseidon.transport.inproc import run_workers
from poseidon.transport.onesided.mpi import MpiEndpoint


def test_without_mpi4py_the_way_out_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(TransportError, match=r"needs mpi4py and an MPI library: .*poseidon-dl\[mpi\]"):
        run_workers(1, MpiEndpoint)


@pytest.mark.parametrize(
    ("world", "level", "text"),
    [
        (SimpleNamespace(rank=1, size=2), 3, "MPI started 2 processes, of which this is 1; the job has 1 workers"),
        (SimpleNamespace(rank=0, size=1), 2, "must not be called from several threads"),
    ],
)
def test_worlds_that_do_not_fit(monkeypatch, world, level, text):
    module = ModuleType("mpi4py")
    module.MPI = SimpleNamespace(COMM_WORLD=world, THREAD_MULTIPLE=3, Query_thread=lambda: level)
    monkeypatch.setitem(sys.modules, "mpi4py", module)
    with pytest.raises(TransportError, match=text):
        run_workers(1, MpiEndpoint)
