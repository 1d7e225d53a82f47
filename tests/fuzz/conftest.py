from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.targets import Target, make_targets

ROOM_BYTES = 2 << 30


@pytest.fixture(scope="session")
def targets(tmp_path_factory) -> dict[str, Target]:
    return make_targets(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Asking for more than a modest amount of memory fails, with an error that is not one of ours."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + ROOM_BYTES, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)
