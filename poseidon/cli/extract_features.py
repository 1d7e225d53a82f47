"""extract-features: `extract_features WEIGHTS NET BLOBS DATASETS NUM_MINI_BATCHES DB_TYPE [CPU|GPU] [DEVICE_ID]`.

With `--workers P`, `--hosts` or `--hostfile`, or under torchrun, srun or mpirun, worker k of several writes DATASET_k.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping

from poseidon.cli.cluster import entry_of, host_flags, hosts_asked, paths_in
from poseidon.cli.command import Command, Flags, Operand, listed, positive_number
from poseidon.cli.telling import tool_flags
from poseidon.cli.terminal import loading
from poseidon.cli.workers import job_environ, teller
from poseidon.data.database import check_backend, check_new
from poseidon.errors import UsageError
from poseidon.run.controller import ClusterJob, run_cluster
from poseidon.run.hosts import Host
from poseidon.run.launcher import LocalJob, follow_launcher, launch
from poseidon.run.rendezvous import SECRET, find_place
from poseidon.spec import read_net
from poseidon.tools.feature_request import FeatureRequest

_RUN = "import sys; from poseidon.cli.caffe_tools import extract_features as run; sys.exit(run())"
# Workers of this job do not talk to each other, so nobody need say where they could meet.
_NOWHERE = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def declare(flags: Flags) -> None:
    flags.operands(
        Operand("WEIGHTS", "a .caffemodel"),
        Operand("NET", "a prototxt with a data layer for the TEST phase"),
        Operand("BLOBS", "the blobs to extract, separated by commas"),
        Operand("DATASETS", "a new database for each of them, separated by commas"),
        Operand("NUM_MINI_BATCHES", "how many batches to run"),
        Operand("DB_TYPE", "lmdb or leveldb"),
        Operand("DEVICE", "CPU (if not given) or GPU", required=False),
        Operand("DEVICE_ID", "the GPU's number (0)", required=False),
    )
    flags.flag("workers", type=positive_number, metavar="P", help="extract with P worker processes on this host")
    host_flags(flags)
    tool_flags(flags)


def run(found: argparse.Namespace) -> int:
    place = find_place(_place_variables(os.environ), found.workers)
    hosts = None if place is not None else hosts_asked(found)
    request = _request(found)
    if place is not None:
        follow_launcher(place)
        found.plain = True
    elif hosts is not None:
        return _start_cluster(found, hosts)
    elif (found.workers or 1) > 1:
        return _start_workers(found, request)
    with loading(found):
        from poseidon.cli.extracting import extract
    return extract(found, request, place)


def _place_variables(environ: Mapping[str, str]) -> Mapping[str, str]:
    return {**_NOWHERE, **environ} if "RANK" in environ else environ


def _request(found: argparse.Namespace) -> FeatureRequest:
    """What is asked for. Mistakes are told before anything is loaded, and once, not by every worker."""
    for path in (found.weights, found.net):
        if not os.path.exists(path):
            raise UsageError(f"there is no file {path!r}; a relative path starts where the command runs")
    try:
        num_batches = positive_number(found.num_mini_batches)
        found.device_id = int((found.device_id or "0").removeprefix("DEVICE_ID="))
    except (argparse.ArgumentTypeError, ValueError) as problem:
        raise UsageError(f"NUM_MINI_BATCHES and DEVICE_ID are numbers: {problem}") from None
    backend = found.db_type.lower()
    check_backend(backend)
    if found.device not in (None, "CPU", "GPU"):
        raise UsageError(f"the device is CPU or GPU, got {found.device!r}")
    request = FeatureRequest(tuple(listed(found.blobs)), tuple(listed(found.datasets)), num_batches, backend)
    request.check_blobs((top for layer in read_net(found.net).net.layer for top in layer.top), found.net)
    return request


# -- starting workers -------------------------------------------------------------------------------------------------
def _command(found: argparse.Namespace) -> tuple[str, ...]:
    return (sys.executable, "-c", _RUN, *found.words[1:])


def _start_workers(found: argparse.Namespace, request: FeatureRequest) -> int:
    for rank in range(found.workers):
        for target in request.of_worker(rank).targets:
            check_new(target)
    return launch(LocalJob(found.program, _command(found), found.workers, job_environ(os.environ)), teller())


def _start_cluster(found: argparse.Namespace, hosts: list[Host]) -> int:
    environ = job_environ(os.environ)
    secret = environ.pop(SECRET)
    paths = [found.weights, found.net, *paths_in(read_net(found.net).net)]
    needed = [path for path in dict.fromkeys(paths) if os.path.exists(path)]
    entry = entry_of(found, needed, environ)
    return run_cluster(ClusterJob(found.program, _command(found), tuple(hosts), entry, secret), teller())


COMMAND = Command(declare, run)
