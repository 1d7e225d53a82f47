"""Fixtures that several packages' tests share."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings

from poseidon.transport import inproc
from tests.workers import worker_pool

__all__ = ["worker_pool"]

# The same examples in every run, however busy the machine: a failure is the change's, not the weather's.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """What is not run without it is not there to be skipped."""
    parser.addoption("--full", action="store_true", help="all faults, 20 seeds each, over all schemes: takes hours")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        rest = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=rest)
        items[:] = [item for item in items if item not in rest]


def pytest_collection_finish() -> None:
    """Ten thousand tests and all modules stay until the end: the garbage collector need not look at them each time."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    cores = sorted(os.sched_getaffinity(0))
    inproc.CORE = cores[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % len(cores)]
    config.addinivalue_line("markers", "full: run by ./test.sh --full only")
    config.addinivalue_line("markers", "xdist_group(name): tests that share a pool of processes stay on one worker")
