"""Faults happen to running jobs, and the job goes on by itself to the result of an undisturbed run (`runs.py`)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.runs import Case, References, cases, disturb
from tests.faults.scenes import FAULTS

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
