"""Fixtures that several packages' tests share."""

from __future__ import annotations

import pytest

from tests.workers import worker_pool

__all__ = ["worker_pool"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "xdist_group(name): tests that share a pool of processes stay on one worker")
