"""The matrix factorisation example runs, on two workers and alone, and finds the factors."""

from __future__ import annotations

import re

import pytest

from tests.parallel import scripts
from tests.parallel.test_examples import free_port
from tests.workers import WorkerPool

pytestmark = pytest.mark.xdist_group("workers")


@pytest.mark.parametrize("consistency", ["ssp", "ssp-push"])
def test_matrix_factorisation(worker_pool: WorkerPool, consistency):
    settings = {"users": 60, "items": 40, "known": 3000, "batch": 100, "sweeps": 25, "staleness": 1}
    printed = worker_pool.results(
        scripts.run_script,
        2,
        timeout_s=60,
        path="examples/matrix_factorisation/train.py",
        arguments=[f"--consistency={consistency}", *(f"--{name}={value}" for name, value in settings.items())],
        port=free_port(),
    )
    assert printed[1] == "", "rank 0 does the talking"
    errors = [float(found) for found in re.findall(r"error ([\d.]+)", printed[0])]
    assert len(errors) == 25
    assert errors[-1] < 0.2 * errors[0], "what is left is the noise"
