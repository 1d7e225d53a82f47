"""Data for small nets."""

from __future__ import annotations

import pytest

from tests.solver.small import write_data


@pytest.fixture
def listing(tmp_path):
    """A list of HDF5 files, as HDF5Data takes it."""
    return write_data(tmp_path)
