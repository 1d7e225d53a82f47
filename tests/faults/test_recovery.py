"""Faults happen to running jobs, and the job goes on by itself to the result of an undisturbed run (`runs.py`), soon.

How soon is measured on a machine with other work: the limits are those that the project promises, several times what is
usual, and are held only where all faults are run.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench.recovery import DIGITS, LENET_FAULTS, disturb_lenet
from tests.data.make import datum, write_lmdb
from tests.faults.runs import Case, References, cases, disturb
from tests.faults.scenes import FAULTS

NOTICED_S, TRAINING_S = 10.0, 20.0
SAMPLE = [Case("kill -9", 2)]
FULL = [case for fault in FAULTS for case in cases(fault)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", FULL if metafunc.config.getoption("--full") else SAMPLE, ids=str)


@pytest.fixture(scope="module")
def references(tmp_path_factory) -> References:
    return References(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_a_job_survives(case, references, folder, request):
    outcome = disturb(case, references, folder, times=1 if not request.config.getoption("--full") else None)
    assert not outcome.problem, f"{outcome.problem}:\n{outcome.text}"
    if request.config.getoption("--full"):
        for seconds in outcome.seconds:
            assert_soon(seconds, outcome.text)


def assert_soon(seconds: dict[str, float], text: str) -> None:
    assert seconds.get("noticed", 0.0) <= NOTICED_S, f"{seconds}:\n{text}"
    assert seconds.get("training", 0.0) <= TRAINING_S, f"{seconds}:\n{text}"


@pytest.mark.full
@pytest.mark.parametrize("fault", LENET_FAULTS)
def test_lenet_on_four_hosts_trains_again_soon(fault, folder):
    """What is in the pictures makes no difference to the time."""
    chance = np.random.RandomState(1)
    for split in ("train", "test"):
        pictures = chance.randint(0, 256, (400, 1, 28, 28)).astype(np.uint8)
        write_lmdb(folder / f"{DIGITS}_{split}_lmdb", [datum(p, n % 10) for n, p in enumerate(pictures)])
    seconds = disturb_lenet(fault, 0, folder, folder)
    assert "training" in seconds
    assert_soon(seconds, fault)
