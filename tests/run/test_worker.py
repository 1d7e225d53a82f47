"""Whole jobs of two workers, as users start them: with --workers, under torchrun, as tasks of Slurm.

The oracle is one worker with twice the batch, in double precision. Figures and files come from processes of their own;
every one of them costs an import of torch, so each job here serves several tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from poseidon.plan import CommPlan
from poseidon.run.launcher import free_port
from poseidon.solver import NetOptions, Solver, events
from poseidon.spec import caffe_pb2
from tests.cli.nets import ROOT, Running

CASE = Path(__file__).parents[1] / "golden" / "formats" / "logs" / "train"
TRAIN_BATCH = 6
MOST_S = 240


def write_case(folder: Path, settings: str = "", *, batch: int = TRAIN_BATCH) -> None:
    """The net and data of one of Caffe's runs; `settings` are those of the solver that are not common."""
    for name in ("train.h5", "train.txt", "test.h5", "test.txt"):
        shutil.copy(CASE / name, folder)
    net = (CASE / "net.prototxt").read_text()
    (folder / "net.prototxt").write_text(net.replace(f"batch_size: {TRAIN_BATCH} ", f"batch_size: {batch} "))
    (folder / "solver.prototxt").write_text(
        'net: "net.prototxt" test_iter: 3 test_interval: 4 base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 '
        f'weight_decay: 0.001 snapshot_prefix: "snap" random_seed: 7 {settings}\n'
    )


def weights(folder: Path, iteration: int) -> list[torch.Tensor]:
    """What a snapshot holds, in double precision, flat."""
    model = caffe_pb2.NetParameter.FromString((folder / f"snap_iter_{iteration}.caffemodel").read_bytes())
    return [torch.tensor(blob.double_data, dtype=torch.float64) for layer in model.layer for blob in layer.blobs]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


# -- one job, looked at from all sides --------------------------------------------------------------------------------
SETTINGS = "max_iter: 8 snapshot: 4 display: 2"


@dataclass(frozen=True, slots=True)
class Alone:
    """What one worker with twice the batch finds."""

    weights: list[torch.Tensor]
    tests: list[tuple[float, ...]]
    losses: list[float]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Alone:
    folder = tmp_path_factory.mktemp("alone")
    write_case(folder, SETTINGS, batch=2 * TRAIN_BATCH)
    before = Path.cwd()
    os.chdir(folder)
    try:
        heard: list[events.Event] = []
        solver = Solver("solver.prototxt", options=NetOptions(dtype=torch.float64), listeners=[heard.append])
        solver.solve()
    finally:
        os.chdir(before)
    tests = [tuple(output.value for output in event.outputs) for event in heard if isinstance(event, events.TestDone)]
    losses = [event.loss for event in heard if isinstance(event, events.IterationShown)]
    return Alone([entry.value.detach().clone() for entry in solver.net.learnable], tests, losses)


@dataclass(frozen=True, slots=True)
class Job:
    folder: Path
    code: int
    log: str

    def said(self, pattern: str) -> list[str]:
        """What a pattern's group matched in the log."""
        return re.findall(pattern, self.log)


def run(folder: Path, *words: str) -> Job:
    """`poseidon train` in a folder, to its end."""
    with Running(
        folder, "train", "--solver=solver.prototxt", *words, program="main", stderr=subprocess.PIPE
    ) as process:
        log = process.read_to_end()
        return Job(folder, process.process.wait(), log)


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Job:
    """Two workers of our launcher, with all that can be watched."""
    folder = tmp_path_factory.mktemp("job")
    write_case(folder, SETTINGS)
    return run(folder, "--workers=2", "--dtype=float64", "--verify-replicas=2", "--net-outputs=out", "--scheme=factors")


def assert_same_training(found: list[torch.Tensor], alone: Alone) -> None:
    for mine, expected in zip(found, alone.weights, strict=True):
        torch.testing.assert_close(mine, expected.reshape(-1), rtol=1e-8, atol=1e-12)


def test_two_workers_train_as_one_with_twice_the_batch(job, alone):
    assert job.code == 0, job.log
    assert_same_training(weights(job.folder, 8), alone)


def test_scores_and_losses_are_those_of_one_worker(job, alone):
    accuracies = [float(text) for text in job.said(r"Test net output #0: accuracy = (\S+)")]
    assert len(accuracies) == 3
    assert accuracies == pytest.approx([accuracy for accuracy, _ in alone.tests], rel=1e-5)
    losses = [float(text) for text in job.said(r"Iteration \d+ \(.*\), loss = (\S+)")]
    assert losses == pytest.approx(alone.losses, rel=1e-5)
    csv = (job.folder / "out.netoutputs").read_text().splitlines()
    assert [float(row.split(",")[2]) for row in csv[1:5]] == pytest.approx(alone.losses, rel=1e-8)


def test_rank_0_says_who_takes_part_and_what_is_sent(job):
    assert job.said(r"\] cluster   (2 workers on host )")
    assert job.said(r"1 thread each, (as asked for)")
    assert job.said(r"\] links     the memory that all workers share: .*bit/s, (measured)")
    assert job.said(r"\] batch     (2 workers × 6 = 12 samples per iteration)")
    assert job.said(r"\] fc1/0 \+3 .*(FACTORS)")
    assert job.said(r"\] iteration (\S+) ms predicted")
    assert "rank 1" not in job.log


def test_what_a_team_has_is_in_the_snapshot(job):
    team = json.loads((job.folder / "snap_iter_4.poseidon.json").read_text())["continuation"]["team"]
    assert len(team["workers"]) == 2
    assert {unit.scheme.value for unit in CommPlan.from_json(team["plan"]).units} == {"factors"}


def test_who_goes_on_from_a_snapshot_repeats_the_bits(job, tmp_path):
    write_case(tmp_path, SETTINGS)
    for path in job.folder.glob("snap_iter_4.*"):
        shutil.copy(path, tmp_path)
    again = run(tmp_path, "--workers=2", "--dtype=float64", "--snapshot=snap_iter_4.solverstate")
    assert again.code == 0, again.log
    assert again.said(r"\] plan      the one of (snap_iter_4\.solverstate), so that sums have the same bits")
    for mine, before in zip(weights(tmp_path, 8), weights(job.folder, 8), strict=True):
        assert torch.equal(mine, before)


# -- other ways to start ----------------------------------------------------------------------------------------------
def test_under_torchrun(alone, tmp_path):
    write_case(tmp_path, SETTINGS)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "poseidon", "train"]
    done = subprocess.run(
        [sys.executable, *words, "--solver=solver.prototxt", "--dtype=float64", "--bandwidth=1gbit"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=MOST_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_same_training(weights(tmp_path, 8), alone)
    assert len(re.findall("Optimization Done", done.stderr)) == 2  # by the solver and by the command, both rank 0's
    assert "links     the memory that all workers share" in done.stderr  # and no link, whatever its bandwidth


def test_as_tasks_of_slurm_without_a_random_seed(tmp_path):
    """Rank 0 chooses the seed: replicas that had different ones would be refused."""
    write_case(tmp_path, SETTINGS)
    settings = (tmp_path / "solver.prototxt").read_text().replace("random_seed: 7", "")
    (tmp_path / "solver.prototxt").write_text(settings)
    variables = {
        "SLURM_NTASKS": "2",
        "SLURM_NODELIST": "127.0.0.1",
        "SLURM_JOB_ID": "1",
        "MASTER_PORT": str(free_port()),
    }
    tasks = [
        subprocess.Popen(
            [sys.executable, "-m", "poseidon", "train", "--solver=solver.prototxt", "--verify-replicas=1"],
            cwd=tmp_path,
            env=environment(**variables, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    logs = [task.communicate(timeout=MOST_S)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], logs
    assert "Optimization Done" in logs[0]
    assert logs[1] == ""
    assert (tmp_path / "snap_iter_8.solverstate").exists()


# -- ends -------------------------------------------------------------------------------------------------------------
ENDLESS = "max_iter: 1000000000 display: 20"


def workers_of(process: Running) -> list[int]:
    """The launcher's children, in the order in which they were started: by rank."""
    pid = process.process.pid
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def training(folder: Path) -> Running:
    write_case(folder, ENDLESS)
    words = ("train", "--solver=solver.prototxt", "--workers=2", "--bandwidth=1gbit")
    return Running(folder, *words, program="main", stderr=subprocess.PIPE)


def test_a_killed_worker_ends_the_job_and_is_named(tmp_path):
    with training(tmp_path) as process:
        process.read_until("Iteration 20 ")
        pids = workers_of(process)
        os.kill(pids[1], signal.SIGKILL)
        end = process.read_to_end()
        assert process.process.wait() == 128 + signal.SIGKILL
    survivor, launcher = end.splitlines()[-2:]
    assert survivor.startswith(f"poseidon: error: rank 1 (host {os.uname().nodename}, pid {pids[1]}) is lost: ")
    assert re.search(r"exchanging unit 0: fc1/0|all-reduce of 32 B", survivor)  # gradients, or the vote on stopping
    assert launcher.startswith(
        f"poseidon: error: rank 1 (host {os.uname().nodename}, pid {pids[1]}) was ended by SIGKILL"
    )
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_ctrl_c_stops_all_workers_with_one_snapshot(tmp_path):
    with training(tmp_path) as process:
        process.read_until("Iteration 20 ")
        pids = workers_of(process)
        process.send(signal.SIGHUP)
        process.read_until("Snapshotting solver state")
        process.read_until("Train net output")  # it goes on
        process.send(signal.SIGINT)
        end = process.read_to_end()
        assert process.process.wait() == 0, end
    assert "Optimization stopped early." in end
    assert len(list(tmp_path.glob("snap_iter_*.solverstate"))) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_mistake_that_all_workers_find_is_told_once(tmp_path):
    write_case(tmp_path, SETTINGS)
    (tmp_path / "train.txt").write_text("nowhere.h5\n")
    failed = run(tmp_path, "--workers=2")
    assert failed.code == 1
    (line,) = [line for line in failed.log.splitlines() if "error" in line]
    assert line.startswith("poseidon: error: ")
    assert "nowhere.h5" in line
    assert "Traceback" not in failed.log


PYTHON_LAYER = """
import os, signal
import caffe

class Moody(caffe.Layer):
    def setup(self, bottom, top): self.count = 0
    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data
        self.count += 1
        if self.count == 3 and os.environ["RANK"] == "1":
            raise ArithmeticError("the third batch is too much")
        while self.count == 3:
            signal.pause()  # as long as a computation may take
    def backward(self, top, down, bottom): bottom[0].diff[...] = top[0].diff
"""


def test_a_worker_that_throws_ends_one_that_computes(tmp_path):
    """The second is told by nobody it waits for: its sentinel ends it."""
    write_case(tmp_path, ENDLESS)
    (tmp_path / "moody.py").write_text(PYTHON_LAYER)
    moody = (
        'layer { name: "moody" type: "Python" bottom: "data" top: "out" python_param {module:"moody" layer:"Moody"} }'
    )
    net = (tmp_path / "net.prototxt").read_text().replace('bottom: "data"', 'bottom: "out"')
    (tmp_path / "net.prototxt").write_text(net.replace('layer {\n  name: "fc1"', f'{moody} layer {{ name: "fc1"'))
    done = run(tmp_path, "--workers=2", "--bandwidth=1gbit")
    assert done.code == 1
    thrown, ended = done.log.splitlines()[-2:]
    problem = r"rank 1 \(host \S+, pid \d+\).*layer 'moody' \(Python\).*ArithmeticError: the third batch is too much"
    assert re.fullmatch(rf"rank 1: poseidon: error: {problem}", thrown)
    assert re.fullmatch(rf"poseidon: error: {problem}; while computing", ended)
