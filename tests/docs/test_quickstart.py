"""quickstart.sh: what it says where it cannot run; and with --full the whole of it, on the environment of the tests."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = ("poseidon", "caffe", "models", "bench", "pyproject.toml", "constraints.txt")


@pytest.fixture
def clone(tmp_path):
    """What the script needs of the repository, in a folder of its own, without .venv."""
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    shutil.copytree(
        ROOT / "examples" / "digits", folder / "examples" / "digits", ignore=shutil.ignore_patterns("*_iter_*")
    )
    shutil.copy2(ROOT / "quickstart.sh", folder)
    for name in SHARED:
        (folder / name).symlink_to(ROOT / name)
    return folder


def start(clone: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [clone / "quickstart.sh"], env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (
            '*version_info*) exit 1 ;; --version) echo "Python 3.9.2" ;;',
            "expected Python 3.10 or newer, got Python 3.9.2",
        ),
        ("*ensurepip*) exit 1 ;;", "has no module venv; install it (Debian and Ubuntu: apt install python3-venv)"),
    ],
)
def test_a_python_that_will_not_do_is_named(clone, answers, said):
    stub = clone / "python"
    stub.write_text(f'#!/bin/sh\ncase "$*" in {answers} *) exit 0 ;; esac\n')
    stub.chmod(0o755)
    done = start(clone, PYTHON=str(stub))
    assert done.returncode == 1
    assert said in done.stderr
    assert not (clone / ".venv").exists()


def test_a_python_that_is_not_there_is_named(clone):
    done = start(clone, PYTHON="python2.0")
    assert done.returncode == 1
    assert "there is no program 'python2.0'; install Python 3.10 or newer, or name one: PYTHON=" in done.stderr


@pytest.mark.full
def test_from_a_clone_to_a_report(clone):
    if not (ROOT / ".venv" / "bin" / "python").exists() or importlib.util.find_spec("mlxtend") is None:
        pytest.skip("needs .venv, as ./test.sh makes it, and mlxtend")
    # The environment of the tests, said to be installed: nothing is fetched, and nothing in it is changed.
    (clone / ".venv").mkdir()
    for entry in (ROOT / ".venv").iterdir():
        (clone / ".venv" / entry.name).symlink_to(entry)
    sums = subprocess.run(
        "cat pyproject.toml constraints.txt | cksum", shell=True, cwd=ROOT, capture_output=True, text=True
    )
    stamp = clone / ".venv" / f"installed-{sums.stdout.split()[0]}-"
    if not stamp.is_symlink():
        stamp.touch()
    began_s = time.monotonic()
    done = start(clone)
    took_s = time.monotonic() - began_s
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert took_s < 120
    (accuracy,) = re.findall(r"never seen: ([\d.]+)", done.stdout)
    assert float(accuracy) >= 0.97
    page = (clone / "runs" / "digits" / "report.html").read_text()
    assert "Poseidon report" in page
    assert f"file://{clone}/runs/digits/report.html" in done.stdout
    next_steps = done.stdout.partition("What next:")[2]
    for command in re.findall(r"--snapshot=(\S+)", next_steps):
        assert (clone / command).exists()
