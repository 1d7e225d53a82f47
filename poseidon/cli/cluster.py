"""Training on several hosts from the command line: which hosts, what must be alike on them, and the start over ssh."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from poseidon.cli.command import Flags, listed, positive_number
from poseidon.cli.workers import job_environ, teller, worker_command
from poseidon.errors import SpecError, UsageError
from poseidon.run.controller import ClusterJob, Recovery, run_cluster
from poseidon.run.hosts import Host, num_workers, parse_hosts, read_hostfile
from poseidon.run.rendezvous import JOB, SECRET
from poseidon.run.site import SILENCE_S, Entry
from poseidon.run.status import StatusFile, status_folder
from poseidon.spec import caffe_pb2, read_net

# Fields of Caffe's schema that name files and folders of a job.
_PATH_FIELDS = ("source", "mean_file", "weights_file")
# What a worker loads before it can begin; it takes seconds, because of PyTorch.
WORKER_MODULES = ("poseidon.cli.team",)


def cluster_flags(flags: Flags) -> None:
    """What `train` takes to run on several hosts."""
    host_flags(flags)
    flags.flag("min-workers", type=positive_number, metavar="N", help="restart with no fewer workers than N (all)")


def host_flags(flags: Flags) -> None:
    """Which hosts, and how they are reached; of every verb that deals with several."""
    flags.flag("hosts", metavar="LIST", help="hosts and their numbers of workers: a,b:2,user@c")
    flags.flag("hostfile", metavar="FILE", help="hosts, one a line: `id address port`, `host slots=n` or `host`")
    flags.flag("ssh", default="ssh", metavar="COMMAND", help="how hosts are reached, like 'ssh -p 2222' (ssh)")


def hosts_asked(found: argparse.Namespace) -> list[Host] | None:
    """The hosts that the flags name; None if they name none."""
    if found.hosts and found.hostfile:
        raise UsageError("give --hosts or --hostfile, not both")
    hosts = parse_hosts(found.hosts) if found.hosts else read_hostfile(found.hostfile) if found.hostfile else None
    if hosts is None:
        if getattr(found, "min_workers", None):
            raise UsageError("--min-workers is for training on several hosts; give --hosts or --hostfile too")
        return None
    least = getattr(found, "min_workers", None)
    if least is not None and least > num_workers(hosts):
        raise UsageError(f"--min-workers={least}, but the hosts have only {num_workers(hosts)} workers")
    if getattr(found, "workers", None) is not None:
        raise UsageError("--workers is for this host alone; with --hosts say how many as in --hosts=a:2,b:2")
    return hosts


def entry_of(
    found: argparse.Namespace, files: Sequence[str], environ: dict[str, str], silence_s: float = SILENCE_S
) -> Entry:
    """How agents are reached and what they are told."""
    try:
        ssh = tuple(shlex.split(found.ssh))
    except ValueError as problem:
        raise UsageError(f"--ssh={found.ssh}: cannot be split into words: {problem}") from None
    interface = getattr(found, "interface", None)
    return Entry(ssh, os.getcwd(), environ, tuple(files), interface, silence_s=silence_s)


def start_cluster(param: caffe_pb2.SolverParameter, found: argparse.Namespace, hosts: Sequence[Host]) -> int:
    """Trains with workers on these hosts; returns an exit code."""
    environ = job_environ(os.environ)
    secret = environ.pop(SECRET)
    job = ClusterJob(
        found.program,
        worker_command(found),
        tuple(hosts),
        replace(entry_of(found, job_files(param, found), environ), modules=WORKER_MODULES),
        secret,
        Recovery(found.max_restarts or 0, found.min_workers),
    )
    status = StatusFile(status_folder(os.environ), environ[JOB])
    status.write({"is_launcher": True, "job": environ[JOB]})  # so that `poseidon kill` finds it
    try:
        return run_cluster(job, teller())
    finally:
        status.remove()


# -- files ------------------------------------------------------------------------------------------------------------
def job_files(param: caffe_pb2.SolverParameter, found: argparse.Namespace) -> list[str]:
    """The files a job reads, as far as they are here: all hosts need the same ones. What nobody has, the job tells."""
    return [path for path in job_paths(param, found) if os.path.exists(path)]


def job_paths(param: caffe_pb2.SolverParameter, found: argparse.Namespace) -> list[str]:
    """What a job names: solver, nets, weights, data."""
    nets = [path for path in (param.net, param.train_net, *param.test_net) if path]
    snapshot = getattr(found, "snapshot", "")
    weights = [*listed(getattr(found, "weights", "")), *param.weights]
    named = [found.solver, *nets, *weights, snapshot if snapshot != "auto" else ""]
    messages: list[Message] = [param]
    for path in nets:
        try:
            messages.append(read_net(path).net)
        except SpecError:
            continue  # told by whoever builds the net, with all that is to be said
    sources = [path for message in messages for path in paths_in(message)]
    return [path for path in dict.fromkeys((*named, *sources)) if path]


def paths_in(message: Message) -> Iterator[str]:
    """Values of the fields that name files, wherever in a message they are."""
    for field, value in message.ListFields():
        is_single = isinstance(value, Message | str | bytes) or not hasattr(value, "__len__")
        entries: list[Any] = [value] if is_single else list(value)
        for entry in entries:
            if isinstance(entry, Message):
                yield from paths_in(entry)
            elif field.name in _PATH_FIELDS and isinstance(entry, str):
                yield entry
