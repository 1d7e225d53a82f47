"""Training with several workers, from the command line: the flags, and starting workers on this host.

A process that torchrun, srun or the launcher started finds its place in the environment. Any other is alone, or starts
`--workers` itself: as many processes with the same command line, each with a place.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping

from poseidon.cli.command import Flags, listed, natural_number, one_of, positive_number
from poseidon.cli.plan import AUTO, SCHEMES, WIRE_HELP
from poseidon.cli.terminal import LastingStream, loading
from poseidon.errors import PeerLost, PoseidonError, UsageError, WorkersDiffer, WorkersFailed
from poseidon.plan import (
    GPI,
    PATTERNS,
    PAYLOAD_SHARE,
    STALE_SCHEMES,
    WIRES,
    PlanRequest,
    Scheme,
    parse_bandwidth,
    parse_overrides,
    parse_scheme,
    parse_seconds,
)
from poseidon.run.exits import MISTAKE, YIELDED
from poseidon.run.launcher import LocalJob, launch
from poseidon.run.options import CONSISTENCIES, MANAGED, ROW_ORDERS, DistributeOptions, check_stats_path
from poseidon.run.rendezvous import JOB, RESTART, SECRET, Place
from poseidon.transport.handshake import make_secret

ONE_SIDED = ("sockets", "mpi")
REDUCTIONS = ("average", "sum")
DTYPES = ("float32", "float64")
REPORT_S = 30.0
HANG_S = 300.0
MIN_LIMIT_BPS = 1e6

_RUN_CAFFE = "import sys; from poseidon.cli import caffe_main; sys.exit(caffe_main())"
_RUN_PMLS = "import sys; from poseidon.cli import pmls_main; sys.exit(pmls_main())"
_PROGRAMS = {"poseidon": ("-m", "poseidon"), "caffe": ("-c", _RUN_CAFFE), "caffe_main": ("-c", _RUN_PMLS)}


def worker_flags(flags: Flags) -> None:
    """What `train` takes besides Caffe's flags. Those that only several workers need have no default here."""
    flags.flag("workers", type=positive_number, metavar="P", help="train with P worker processes on this host")
    flags.flag("threads", type=positive_number, metavar="N", help="a worker's (the host's cores divided among them)")
    flags.flag("dtype", type=one_of(DTYPES), default="float32", metavar="TYPE", help=f"{'|'.join(DTYPES)} (float32)")
    flags.flag("net-outputs", metavar="PREFIX", help="write losses and outputs to PREFIX.netoutputs, as CSV")
    flags.flag("scheme", type=one_of(SCHEMES), metavar="NAME", help=f"{'|'.join(SCHEMES)} (auto)")
    flags.flag("schemes", metavar="LIST", help="schemes by layer or parameter: fc6=ring,fc7*=factors")
    flags.flag("reduce", type=one_of(REDUCTIONS), metavar="HOW", help="gradients over workers: average|sum (average)")
    flags.flag("pattern", type=one_of(PATTERNS), metavar="NAME", help=f"{'|'.join(PATTERNS)} ({PATTERNS[0]})")
    flags.flag("one-sided", type=one_of(ONE_SIDED), metavar="NAME", help=f"what carries puts: {'|'.join(ONE_SIDED)}")
    flags.flag("staleness", type=natural_number, metavar="S", help="parameters may be S clocks behind (0: exact)")
    flags.flag(
        "consistency",
        type=one_of(CONSISTENCIES),
        metavar="NAME",
        help=f"how values come under staleness: {'|'.join(CONSISTENCIES)} ({CONSISTENCIES[0]})",
    )
    flags.flag("servers", type=natural_number, metavar="N", help="N processes more only serve parameters (0)")
    flags.flag("data-in-memory", action="store_true", help="records spread over the workers' memory, shuffled")
    flags.flag("row-order", type=one_of(ROW_ORDERS), metavar="NAME", help=f"{'|'.join(ROW_ORDERS)} ({ROW_ORDERS[0]})")
    flags.flag("half-rows", action="store_true", help="in managed mode, rows that leave early do so as float16")
    flags.flag("balance", action="store_true", help="deal batches out by how fast each worker is")
    flags.flag("stats", metavar="FILE", help="write what each worker does in each clock, to FILE.yaml or .jsonl")
    flags.flag("wire", type=one_of(WIRES), metavar="TYPE", help=WIRE_HELP)
    flags.flag("sync-bn", action="store_true", help="BatchNorm takes the statistics of all workers' batches")
    flags.flag("verify-replicas", type=positive_number, metavar="N", help="compare parameters every N iterations")
    flags.flag("interface", metavar="NAME", help="network interface (the one towards the first worker's host)")
    flags.flag("bandwidth", metavar="RATE", help="of a host's link, like 1gbit, instead of measuring it")
    flags.flag("bandwidth-limit", metavar="RATE", help="that a worker may use in each direction, like 200mbit")
    flags.flag("latency", metavar="TIME", help="of a message, like 0.1ms, instead of measuring it")
    flags.flag(
        "report-after", type=positive_number, metavar="S", help=f"report an exchange that takes longer ({REPORT_S:g} s)"
    )
    flags.flag(
        "hang-after",
        type=positive_number,
        metavar="S",
        help=f"a worker that stands still so long while all others wait for it is lost ({HANG_S:g} s)",
    )
    flags.flag("max-restarts", type=positive_number, metavar="N", help="go on by itself after a failure, N times (0)")


_NEED_SEVERAL = (
    "scheme",
    "schemes",
    "reduce",
    "pattern",
    "one_sided",
    "consistency",
    "servers",
    "data_in_memory",
    "row_order",
    "half_rows",
    "balance",
    "stats",
    "wire",
    "sync_bn",
    "verify_replicas",
    "interface",
    "bandwidth",
    "bandwidth_limit",
    "latency",
    "report_after",
    "hang_after",
    "max_restarts",
)


def check_alone(found: argparse.Namespace) -> None:
    """Refuses what makes no sense for one worker."""
    if found.staleness is not None:
        raise UsageError("--staleness is for training with several workers; give --workers too, or leave it out")
    for name in _NEED_SEVERAL:
        if getattr(found, name):
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} is for training with several workers; give --workers too, or leave it out")


def check_values(found: argparse.Namespace) -> None:
    """Raises for values that cannot be read: here, once, not on every worker."""
    plan_request(found)
    bandwidth_bps(found)
    latency_s(found)
    limit_bps(found)
    check_one_sided(found)
    if found.stats is not None:
        check_stats_path(found.stats)


def plan_request(found: argparse.Namespace) -> PlanRequest:
    """What the flags ask of the plan."""
    check_stale_flags(found)
    return PlanRequest(
        wire=found.wire or WIRES[0],
        scheme=None if found.scheme in (None, AUTO) else parse_scheme(found.scheme),
        overrides=parse_overrides(found.schemes) if found.schemes else (),
        pattern=found.pattern or PATTERNS[0],
        among=tuple(Scheme) if found.staleness is None else stale_schemes(found),
    )


def stale_schemes(found: argparse.Namespace) -> tuple[Scheme, ...]:
    """What a worker's own rule has made of a gradient in managed mode is not a product of factors any more."""
    return (Scheme.SERVER,) if found.consistency == MANAGED else tuple(STALE_SCHEMES)


def check_stale_flags(found: argparse.Namespace) -> None:
    """Refuses what has no meaning under staleness, or without."""
    if found.staleness is None:
        for name in ("consistency", "servers", "row_order", "half_rows"):
            if getattr(found, name):
                raise UsageError(
                    f"--{name.replace('_', '-')} is for training under staleness; give --staleness too (0: exact)"
                )
        return
    DistributeOptions(  # raises
        staleness=found.staleness,
        consistency=found.consistency or CONSISTENCIES[0],
        servers=found.servers or 0,
        sync_bn=found.sync_bn,
        balance=found.balance,
        row_order=found.row_order or ROW_ORDERS[0],
        half_rows=found.half_rows,
    )
    schemes = tuple(scheme.value for scheme in stale_schemes(found))
    if found.scheme not in (None, AUTO, *schemes):
        raise UsageError(
            f"under --staleness parameters have servers: --scheme is one of {', '.join(schemes)}, got {found.scheme}"
        )
    if found.pattern == GPI:
        raise UsageError("--staleness has its own way of putting messages; leave --pattern out")
    if found.wire not in (None, WIRES[0]):
        raise UsageError(f"under --staleness gradients travel as they are; leave --wire {found.wire} out")


def check_one_sided(found: argparse.Namespace) -> None:
    """Refuses to choose a carrier of puts where nothing is put."""
    if found.one_sided and found.pattern != GPI and not found.data_in_memory and found.staleness is None:
        raise UsageError(
            f"--one-sided={found.one_sided} says what carries puts, but nothing is put: give --pattern={GPI}, "
            "--data-in-memory or --staleness too, or leave it out"
        )


def bandwidth_bps(found: argparse.Namespace) -> float | None:
    """Payload of the link the flags name, if they do."""
    return parse_bandwidth(found.bandwidth) * PAYLOAD_SHARE if found.bandwidth else None


def limit_bps(found: argparse.Namespace) -> float | None:
    """What a worker may use of its link in each direction, headers included."""
    limit = parse_bandwidth(found.bandwidth_limit) if found.bandwidth_limit else None
    if limit is not None and limit < MIN_LIMIT_BPS:
        raise UsageError(
            f"--bandwidth-limit must be at least {MIN_LIMIT_BPS / 1e6:g}mbit, got {found.bandwidth_limit}: signs of "
            "life must get through"
        )
    if limit is not None and found.one_sided == "mpi":
        raise UsageError("--bandwidth-limit: what MPI sends cannot be limited from here; leave --one-sided=mpi out")
    return limit


def latency_s(found: argparse.Namespace) -> float | None:
    return parse_seconds(found.latency) if found.latency else None


def threads_asked(found: argparse.Namespace, environ: Mapping[str, str]) -> int | None:
    """--threads, or OMP_NUM_THREADS unless torchrun has put it there, which knows nothing of the host's cores."""
    if found.threads is not None:
        return int(found.threads)
    text = environ.get("OMP_NUM_THREADS", "")
    is_torchruns = "TORCHELASTIC_RUN_ID" in environ and text == "1"
    return int(text) if text.isascii() and text.isdecimal() and int(text) > 0 and not is_torchruns else None


# -- starting workers -------------------------------------------------------------------------------------------------
def num_to_start(found: argparse.Namespace) -> int:
    """How many workers this process is to start: --workers, or one for each of several GPUs."""
    num_gpus = 1
    if found.gpu == "all" or len(listed(found.gpu)) > 1:
        with loading(found):
            from poseidon.cli.devices import gpu_ids
        num_gpus = len(gpu_ids(found.gpu))
    if found.gpu and found.workers is not None and found.workers != num_gpus:
        raise UsageError(
            f"--gpu={found.gpu} names {num_gpus} GPU{'s' if num_gpus > 1 else ''} for {found.workers} workers; one "
            "worker computes on one device: leave --workers out, or name as many GPUs"
        )
    num_servers = found.servers or 0
    return (num_gpus if found.gpu else found.workers or 1) + num_servers


def start_workers(found: argparse.Namespace, num_workers: int) -> int:
    """Trains with workers of this host, again after a failure if that is asked for; returns an exit code."""
    tell, environ = teller(), job_environ(os.environ)
    for restart in range(1 + (found.max_restarts or 0)):
        job = LocalJob(found.program, worker_command(found), num_workers, {**environ, RESTART: str(restart)})
        code = launch(job, tell)
        if code in (0, MISTAKE, YIELDED, 128 + signal.SIGINT, 128 + signal.SIGTERM):
            return code
        if restart < (found.max_restarts or 0):
            tell(f"{found.program}: restart {restart + 1} of {found.max_restarts}, from the job's newest good snapshot")
    return code


def worker_command(found: argparse.Namespace) -> tuple[str, ...]:
    """The command line of a worker: this one's."""
    return (sys.executable, *_PROGRAMS[found.program], *found.words)


def job_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job that starts here: its name, and a secret of its own unless it was given one."""
    named = {JOB: environ.get(JOB) or f"{os.getpid()}-{secrets.token_hex(4)}"}
    return {**environ, **named, SECRET: environ.get(SECRET) or make_secret()}


def teller() -> Callable[[str], None]:
    """Shows lines on standard error, as long as there is one."""
    stream = LastingStream(sys.stderr)

    def tell(line: str) -> None:
        stream.write(f"{line}\n")
        stream.flush()

    return tell


def is_echo(problem: PoseidonError, place: Place) -> bool:
    """True if another worker on the same terminal says the same: of those left the first one speaks for all."""
    if place.launcher_pid is None or not isinstance(problem, (PeerLost, WorkersDiffer, WorkersFailed)):
        return False
    lost = problem.ranks if isinstance(problem, PeerLost) else ()
    return place.rank != min(set(range(place.size)) - set(lost), default=place.rank)
