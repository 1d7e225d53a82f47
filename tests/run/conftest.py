"""Data for small nets."""

from __future__ import annotations

import pytest

from tests.run.jobs import write_pictures
from tests.solver.small import write_data


@pytest.fixture
def listing(tmp_path):
    """A list of HDF5 files, as HDF5Data takes it."""
    return write_data(tmp_path)


@pytest.fixture
def pictures(tmp_path):
    """An LMDB, as Data takes it."""
    return write_pictures(tmp_path / "pictures")
