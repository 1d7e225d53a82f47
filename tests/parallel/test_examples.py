"""The examples run, with small settings, on two workers; and what they print is what they promise."""

from __future__ import annotations

import importlib.util
import re
import socket

import pytest

from tests.parallel import scripts
from tests.workers import WorkerPool

pytestmark = pytest.mark.xdist_group("workers")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def run(worker_pool: WorkerPool, name: str, *arguments: str) -> str:
    path = f"examples/parallel/{name}.py"
    printed = worker_pool.results(
        scripts.run_script, 2, timeout_s=90, path=path, arguments=list(arguments), port=free_port()
    )
    assert printed[1] == "", "rank 0 does the talking"
    return printed[0]


def losses(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss ([\d.]+)", text)]


def test_mlp(worker_pool):
    text = run(worker_pool, "mlp", "--steps", "24", "--width", "64")
    first, last = losses(text)
    assert last < first
    assert "0.weight" in text


def test_char_transformer(worker_pool):
    text = run(worker_pool, "char_transformer", "--steps", "10", "--hashes", "5000", "--width", "16", "--length", "24")
    first, last = losses(text)
    assert last < first
    assert "iteration" in text.split("cluster")[1]  # the plan; what it says depends on how fast this host is


def test_finetune_head(worker_pool):
    text = run(worker_pool, "finetune_head", "--steps", "14", "--width", "32")
    frozen, thawed = text.split("cluster")[1:]
    assert "features.0.weight +3" in frozen
    assert re.search(r"LOCAL", frozen)
    assert not re.search(r"LOCAL", thawed)
    assert re.search(r"classifier.0.weight .*FACTORS", thawed)


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@pytest.mark.skipif(not has("lightning"), reason="needs the extra `lightning`: ./test.sh --full")
def test_lightning(worker_pool):
    text = run(worker_pool, "with_lightning", "--steps", "12", "--width", "64")
    assert float(text.split()[-1]) > 0.3
    assert "after 12 steps" in text


@pytest.mark.skipif(not has("accelerate"), reason="needs the extra `accelerate`: ./test.sh --full")
def test_accelerate(worker_pool):
    text = run(worker_pool, "with_accelerate", "--steps", "12", "--width", "64")
    assert float(text.split()[-1]) > 0.3
