"""Flags for several workers: what is refused, and what each asks for. No worker is started here."""

from __future__ import annotations

import argparse
import sys

import pytest
import torch

from poseidon.cli import POSEIDON, caffe_main, main, parse, team, workers
from poseidon.cli.devices import worker_device
from poseidon.errors import PeerLost, TransportTimeout, UsageError, WorkersDiffer, WorkersFailed
from poseidon.plan import PAYLOAD_SHARE, Override, PlanRequest, Scheme
from poseidon.run.distribute import DistributeOptions
from poseidon.run.planning import Links
from poseidon.run.rendezvous import Place
from poseidon.run.resume import Resume
from poseidon.spec import caffe_pb2
from tests.cli.nets import write_case

PLACE = Place(1, 4, 1, 2, "127.0.0.1", 1234)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_case(tmp_path, "max_iter: 2 snapshot_after_train: false")
    return tmp_path


@pytest.fixture
def jobs(monkeypatch):
    """What would be launched."""
    launched = []
    monkeypatch.setattr(workers, "launch", lambda job, tell: launched.append(job) or 0)
    return launched


def flags(*words: str) -> argparse.Namespace:
    return parse(POSEIDON, ["train", "--solver=solver.prototxt", *words])[1]


def told(capsys, *words: str) -> str:
    """The one line that a mistake is answered with."""
    assert main(["train", "--solver=solver.prototxt", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


# -- one process ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "flag",
    [
        "--scheme=ring",
        "--schemes=fc=ring",
        "--reduce=sum",
        "--wire=bf16",
        "--sync-bn",
        "--verify-replicas=5",
        "--interface=lo",
        "--bandwidth=1gbit",
        "--latency=1ms",
    ],
)
@pytest.mark.parametrize("one", [[], ["--workers=1"]])
def test_what_only_several_workers_need_is_refused_for_one(flag, one, capsys):
    line = told(capsys, flag, *one)
    name = flag.partition("=")[0]
    assert line == f"poseidon: error: {name} is for training with several workers; give --workers too, or leave it out"


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--workers=0", "--workers: expected at least 1, got 0"),
        ("--workers=two", "--workers: expected a whole number, got 'two'"),
        ("--threads=0", "--threads: expected at least 1, got 0"),
        ("--scheme=rnig", "got 'rnig' (did you mean 'ring'?)"),
        ("--reduce=mean", "--reduce: expected one of average, sum, got 'mean'"),
        ("--wire=fp8", "--wire: expected one of fp32, bf16, fp16, got 'fp8'"),
        ("--dtype=float16", "--dtype: expected one of float32, float64, got 'float16'"),
        ("--verify-replicas=0", "--verify-replicas: expected at least 1, got 0"),
        ("--schemes=fc", "schemes of units are written NAME=SCHEME, separated by commas, got 'fc'"),
        ("--schemes=fc=local", "what learns cannot stay local"),
        ("--bandwidth=fast", "a bandwidth is a number above 0 with one of"),
        ("--latency=1", "a time is a number with one of ns, us, ms, s"),
    ],
)
def test_values_are_refused_before_any_worker_is_started(flag, problem, capsys, jobs):
    assert problem in told(capsys, "--workers=2", flag)
    assert jobs == []


@pytest.mark.parametrize(("dtype", "expected"), [("float32", torch.float32), ("float64", torch.float64)])
def test_dtype_threads_and_outputs_act_on_one_process_too(dtype, expected, here, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    words = ["train", "--solver=solver.prototxt", f"--dtype={dtype}", "--threads=3", "--net-outputs=out"]
    write_case(here, "max_iter: 2 display: 1")
    assert caffe_main(words) == 0
    assert seen == [3]
    rows = (here / "out.netoutputs").read_text().splitlines()
    assert rows[0] == "Iteration,time,loss,loss,"
    assert [row.partition(",")[0] for row in rows[1:3]] == ["0", "1"]
    model = caffe_pb2.NetParameter.FromString((here / "snap_iter_2.caffemodel").read_bytes())
    blob = next(layer for layer in model.layer if layer.name == "fc").blobs[0]
    assert bool(blob.double_data) == (expected is torch.float64)


# -- starting workers -------------------------------------------------------------------------------------------------
def test_workers_run_the_same_command(jobs):
    assert main(["--plain", "train", "--solver", "solver.prototxt", "-workers=3", "--scheme=RING"]) == 0
    (job,) = jobs
    assert job.num_workers == 3
    expected = (sys.executable, "-m", "poseidon", "train", "--plain", "--solver", "solver.prototxt", "-workers=3")
    assert job.command == (*expected, "--scheme=RING")


def test_caffes_workers_are_caffes(jobs):
    assert caffe_main(["train", "--solver=solver.prototxt", "--workers=2"]) == 0
    assert jobs[0].program == "caffe"
    assert "caffe_main" in jobs[0].command[2]


def test_a_solver_that_is_not_there_starts_nobody(jobs, capsys):
    assert main(["train", "--solver=nowhere.prototxt", "--workers=2"]) == 1
    assert "nowhere.prototxt" in capsys.readouterr().err
    assert jobs == []


@pytest.fixture
def gpus(monkeypatch):
    """A machine with four GPUs, as far as counting goes."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize(("gpu", "num_workers"), [("0,1", 2), ("3,1,0", 3), ("all", 4)])
def test_several_gpus_are_one_worker_each(gpu, num_workers, gpus, jobs):
    assert main(["train", "--solver=solver.prototxt", f"--gpu={gpu}"]) == 0
    assert main(["train", "--solver=solver.prototxt", f"--gpu={gpu}", f"--workers={num_workers}"]) == 0
    assert [job.num_workers for job in jobs] == [num_workers] * 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--gpu=0,1", "--workers=3"], "--gpu=0,1 names 2 GPUs for 3 workers; one worker computes on one device"),
        (["--gpu=2", "--workers=2"], "--gpu=2 names 1 GPU for 2 workers"),
        (["--gpu=0,4"], "--gpu=0,4: there is no GPU 4; PyTorch sees 4, numbered from 0"),
    ],
)
def test_gpus_and_workers_must_agree(words, problem, gpus, jobs, capsys):
    assert problem in told(capsys, *words)
    assert jobs == []


# -- in a place -------------------------------------------------------------------------------------------------------
def test_an_environment_that_contradicts_itself_is_told(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    assert "says RANK=0, as for one of several workers, but not WORLD_SIZE" in told(capsys)


def test_another_number_than_the_launchers_is_told(monkeypatch, capsys):
    for name, text in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, text)
    assert "one of 2 workers, but --workers says 3" in told(capsys, "--workers=3")


def test_every_flag_reaches_the_worker(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plain = team._options(flags(), torch.device("cpu"))
    assert (plain.net.dtype, plain.threads, plain.interface, plain.resume) == (torch.float32, None, None, Resume())
    assert (plain.secret, plain.keep, plain.report_s) == (b"", 0, 30.0)
    assert (plain.request, plain.team, plain.links) == (PlanRequest(), DistributeOptions(), Links())
    words = "--scheme=server --schemes=fc*=factors --reduce=sum --wire=fp16 --sync-bn --verify-replicas=7 --threads=2"
    words += " --interface=lo --bandwidth=2gbit --latency=3ms --dtype=float64 --net-outputs=out"
    full = team._options(flags(*words.split()), torch.device("cpu"))
    overrides = (Override("fc*", Scheme.FACTORS),)
    assert full.request == PlanRequest(wire="fp16", scheme=Scheme.SERVER, overrides=overrides)
    assert full.team == DistributeOptions(averages=False, sync_bn=True, verify_replicas=7, net_outputs="out")
    assert full.links == Links(2e9 * PAYLOAD_SHARE, 3e-3)
    assert (full.net.dtype, full.threads, full.interface) == (torch.float64, 2, "lo")


def test_the_launchers_words_reach_the_worker(monkeypatch):
    for name, text in {"SECRET": "s" * 16, "JOB": "j", "RESTART": "2"}.items():
        monkeypatch.setenv(f"POSEIDON_{name}", text)
    found = team._options(
        flags("--snapshot=auto", "--keep=2", "--report-after=9", "--hang-after=7"), torch.device("cpu")
    )
    assert found.resume == Resume("auto", "j", is_restart=True)
    assert (found.secret, found.keep, found.report_s, found.hang_s) == (b"s" * 16, 2, 9, 7)
    assert "ssss" not in repr(found)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--hosts=a,b --hostfile=f", "give --hosts or --hostfile, not both"),
        (
            "--hosts=a,b --workers=2",
            "--workers is for this host alone; with --hosts say how many as in --hosts=a:2,b:2",
        ),
        ("--hosts=a,b:2 --min-workers=4", "--min-workers=4, but the hosts have only 3 workers"),
        ("--min-workers=2", "--min-workers is for training on several hosts; give --hosts or --hostfile too"),
        ("--hosts=-oProxyCommand=x", "is no name of a host"),
        ("--hostfile=none", "--hostfile=none: cannot be read"),
        ("--hosts=a,b --ssh=", "there is no"),
        ("--max-restarts=2", "--max-restarts is for training with several workers"),
        ("--hosts=a --ssh='", "cannot be split into words"),
    ],
)
def test_hosts_that_make_no_sense_are_refused(words, problem, capsys):
    assert problem in told(capsys, *words.split())


def test_local_workers_are_started_again_after_a_crash_only(monkeypatch, capsys):
    """With a launcher that ends as it is told to."""
    codes, restarts = [], []
    monkeypatch.setattr(
        workers, "launch", lambda job, tell: restarts.append(job.environ["POSEIDON_RESTART"]) or codes.pop(0)
    )
    words = ["train", "--solver=solver.prototxt", "--workers=2", "--max-restarts=2"]
    for given, expected, number in (
        ([137, 3, 0], 0, 3),
        ([137, 3, 137], 137, 3),
        ([1], 1, 1),
        ([130], 130, 1),
        ([75], 75, 1),
    ):
        codes[:], restarts[:] = given, []
        assert main(words) == expected
        assert restarts == [str(index) for index in range(number)]


def test_a_job_has_one_name_and_one_secret():
    first, second = workers.job_environ({}), workers.job_environ({})
    assert first["POSEIDON_SECRET"] != second["POSEIDON_SECRET"]
    assert len(first["POSEIDON_SECRET"]) == 64
    given = {"POSEIDON_SECRET": "g" * 20, "POSEIDON_JOB": "mine"}
    assert workers.job_environ(given) == given


@pytest.mark.parametrize(
    ("words", "environ", "threads"),
    [
        ([], {}, None),
        (["--threads=5"], {"OMP_NUM_THREADS": "2"}, 5),
        ([], {"OMP_NUM_THREADS": "2"}, 2),
        ([], {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}, None),  # torchrun's own default
        ([], {"OMP_NUM_THREADS": "4", "TORCHELASTIC_RUN_ID": "none"}, 4),
        ([], {"OMP_NUM_THREADS": "4,2"}, None),
        ([], {"OMP_NUM_THREADS": "0"}, None),
    ],
)
def test_threads(words, environ, threads):
    assert workers.threads_asked(flags(*words), environ) == threads


# -- devices ----------------------------------------------------------------------------------------------------------
CPU_SOLVER = caffe_pb2.SolverParameter(solver_mode=caffe_pb2.SolverParameter.CPU)
GPU_SOLVER = caffe_pb2.SolverParameter(solver_mode=caffe_pb2.SolverParameter.GPU)


def test_workers_of_a_host_take_a_gpu_each(gpus):
    assert worker_device(CPU_SOLVER, "2,0", PLACE) == torch.device("cuda", 0)
    assert worker_device(CPU_SOLVER, "all", PLACE) == torch.device("cuda", 1)
    assert worker_device(GPU_SOLVER, "", PLACE) == torch.device("cuda", 1)
    assert worker_device(CPU_SOLVER, "", PLACE) == torch.device("cpu")


def test_a_task_that_sees_one_gpu_takes_it(gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert worker_device(GPU_SOLVER, "", PLACE) == torch.device("cuda", 0)


def test_too_few_gpus_are_told(gpus):
    with pytest.raises(UsageError, match=r"1 GPU\(s\) for 2 workers of this host"):
        worker_device(CPU_SOLVER, "3", PLACE)
    with pytest.raises(UsageError, match="which GPU is whose"):
        worker_device(CPU_SOLVER, "0,1", Place(1, 4, None, None, "127.0.0.1", 1234))


# -- who speaks -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("problem", "speakers"),
    [
        (UsageError("own"), [0, 1, 2, 3]),
        (TransportTimeout("own", (1,)), [0, 1, 2, 3]),
        (PeerLost("gone", (2,)), [0]),
        (PeerLost("gone", (0,)), [1]),
        (PeerLost("gone", (0, 1)), [2]),
        (WorkersDiffer("differ", (1,)), [0]),
        (WorkersFailed("failed", (0, 1, 2, 3)), [0]),
    ],
)
def test_on_one_terminal_one_worker_speaks_for_all(problem, speakers):
    places = [Place(rank, 4, rank, 4, "127.0.0.1", 1234, launcher_pid=1) for rank in range(4)]
    assert [place.rank for place in places if not workers.is_echo(problem, place)] == speakers
    elsewhere = [Place(rank, 4, rank, 4, "127.0.0.1", 1234) for rank in range(4)]
    assert not any(workers.is_echo(problem, place) for place in elsewhere)
