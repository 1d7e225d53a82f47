"""Rendezvous: which of the job's workers this process is, and where all of them meet, told by the environment.

    torchrun, our launcher   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
    Open MPI's mpirun        OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK …_LOCAL_SIZE
    Slurm's srun             SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NODELIST SLURM_JOB_ID
    MPICH's, Intel's mpirun  PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS

The upper ones win: under `srun torchrun …` both are there, and Slurm's count agents; so they do under mpirun in a
Slurm job. (srun may set PMI_RANK too, to the same.) Slurm names no place to meet: it is the first host of the list, at
a port that follows from the job's number (MASTER_ADDR and MASTER_PORT, if set, win). mpirun names none either: on one
host there is no question, with several MASTER_ADDR is needed. The script of an sbatch job is no task, although it has
some of the variables.

    POSEIDON_SECRET      what the workers of a job prove to each other (`transport/handshake.py`)
    POSEIDON_JOB         a job's name, the same on all hosts and after restarts
    POSEIDON_RESTART     how often it was started before; torchrun's TORCHELASTIC_RESTART_COUNT

The environment is read here and in `cli/` only.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from poseidon.errors import UsageError
from poseidon.run.slurm import expand_hosts, tasks_per_node

# Below what systems hand out for outgoing connections, so that none of those sits on a port by chance.
FIRST_PORT, NUM_PORTS = 15_000, 17_000

SECRET, JOB, RESTART = "POSEIDON_SECRET", "POSEIDON_JOB", "POSEIDON_RESTART"
LEAST_SECRET_CHARS = 16

_LAUNCHER_PID = "POSEIDON_LAUNCHER_PID"
_STORE_PREFIX = "poseidon"
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TELLTALE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class Place:
    """One worker's place in a job.

    local_rank, local_size   among the workers of its node; None: nobody said, host names will tell
    store_prefix             not empty: torchrun's agent runs the store, and our keys in it begin with this
    launcher_pid             our own launcher, if it started this process
    """

    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    master_address: str
    master_port: int
    store_prefix: str = ""
    launcher_pid: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise UsageError(
                f"this process is started as rank {self.rank} of {self.size}; ranks are 0 … {self.size - 1}"
            )
        if self.local_size is not None and not 1 <= self.local_size <= self.size:
            raise UsageError(f"a node has 1 to {self.size} workers of a job of {self.size}, got {self.local_size}")
        num_local = self.local_size or self.size
        if self.local_rank is not None and not 0 <= self.local_rank < num_local:
            raise UsageError(
                f"this process is local rank {self.local_rank} of {num_local}; they are 0 … {num_local - 1}"
            )
        if not 1 <= self.master_port <= 65535:
            raise UsageError(f"the port at which workers meet is within 1 … 65535, got {self.master_port}")


def find_place(environ: Mapping[str, str], num_asked: int | None = None) -> Place | None:
    """This process's place among several workers; None if it is alone.

    `num_asked` is what `--workers` says: a process that is alone may start so many itself, one of several may only
    agree. A partial or contradictory environment raises UsageError.
    """
    others = ("SLURM_PROCID", *(mpi.rank for mpi in _MPIS))
    is_told = any(name in environ for name in _TELLTALE) and not any(name in environ for name in others)
    if "RANK" in environ or is_told:
        place = _torchrun_place(environ)
    elif (mpi := _mpi_of(environ)) is not None:
        place = _mpi_place(environ, mpi)
    elif "SLURM_PROCID" in environ and not _is_batch_script(environ, num_asked):
        place = _slurm_place(environ)
    else:
        return None
    if place.size == 1:
        return None
    if num_asked not in (None, place.size):
        raise UsageError(
            f"this process was started as one of {place.size} workers, but --workers says {num_asked}; leave --workers "
            "out where torchrun, srun or mpirun start the workers"
        )
    return place


# -- torchrun, and our own launcher -----------------------------------------------------------------------------------
def _torchrun_place(environ: Mapping[str, str]) -> Place:
    missing = [name for name in _NEEDED if not environ.get(name)]
    if missing:
        said = ", ".join(f"{name}={environ[name]}" for name in (*_TELLTALE, *_NEEDED[2:]) if environ.get(name))
        raise UsageError(
            f"the environment says {said}, as for one of several workers, but not {' and '.join(missing)}; "
            f"set all of {', '.join(_NEEDED)}, or none of them"
        )
    is_hosted = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Place(
        rank=_number(environ, "RANK"),
        size=_number(environ, "WORLD_SIZE"),
        local_rank=_number_if_said(environ, "LOCAL_RANK"),
        local_size=_number_if_said(environ, "LOCAL_WORLD_SIZE"),
        master_address=environ["MASTER_ADDR"],
        master_port=_number(environ, "MASTER_PORT"),
        store_prefix=_STORE_PREFIX if is_hosted else "",
        launcher_pid=_number_if_said(environ, _LAUNCHER_PID),
    )


def variables_of(place: Place, environ: Mapping[str, str]) -> dict[str, str]:
    """An environment from which `find_place` reads this place, whatever others `environ` may tell of."""
    kept = {name: text for name, text in environ.items() if not name.startswith("TORCHELASTIC_")}
    said = {
        "RANK": place.rank,
        "WORLD_SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size,
        "MASTER_ADDR": place.master_address,
        "MASTER_PORT": place.master_port,
        _LAUNCHER_PID: place.launcher_pid,
    }
    return {**kept, **{name: str(value) for name, value in said.items() if value is not None}}


# -- MPI --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Mpi:
    """The variables of one MPI; `jobs` are those that tell jobs apart, as far as they are set."""

    rank: str
    size: str
    local_rank: str
    local_size: str
    jobs: tuple[str, ...]


_OPEN_MPI = _Mpi(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"),
)
_HYDRA = _Mpi("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_JOBID", "PMI_KVS", "HYDI_JOB_ID"))
_MPIS = (_OPEN_MPI, _HYDRA)


def _mpi_of(environ: Mapping[str, str]) -> _Mpi | None:
    if _OPEN_MPI.rank in environ:
        return _OPEN_MPI
    is_sruns = environ.get("SLURM_NTASKS") == environ.get(_HYDRA.size) and "SLURM_PROCID" in environ
    return _HYDRA if _HYDRA.rank in environ and not is_sruns else None


def _mpi_place(environ: Mapping[str, str], mpi: _Mpi) -> Place:
    if not environ.get(mpi.size):
        raise UsageError(
            f"the environment has {mpi.rank}, as mpirun sets it, but not {mpi.size}; start workers with it"
        )
    size, local_size = _number(environ, mpi.size), _number_if_said(environ, mpi.local_size)
    address = environ.get("MASTER_ADDR") or ("127.0.0.1" if local_size == size else "")
    job = next((environ[name] for name in mpi.jobs if environ.get(name)), "")
    port = _number_if_said(environ, "MASTER_PORT") or (FIRST_PORT + zlib.crc32(job.encode()) % NUM_PORTS if job else 0)
    if size > 1 and not (address and port):
        raise UsageError(
            "mpirun does not say where workers on several hosts meet: give the host of rank 0 and a free port there, "
            "as in `mpirun -x MASTER_ADDR=node1 -x MASTER_PORT=29500 …` (-genv instead of -x for MPICH and Intel MPI)"
        )
    return Place(
        rank=_number(environ, mpi.rank),
        size=size,
        local_rank=_number_if_said(environ, mpi.local_rank),
        local_size=local_size,
        master_address=address or "127.0.0.1",
        master_port=port or FIRST_PORT,
    )


# -- Slurm ------------------------------------------------------------------------------------------------------------
def _is_batch_script(environ: Mapping[str, str], num_asked: int | None) -> bool:
    """sbatch's script runs once, whatever the number of tasks; only what srun starts has a step."""
    if environ.get("ENVIRONMENT") != "BATCH" or "SLURM_STEP_ID" in environ:
        return False
    num_tasks = _number_if_said(environ, "SLURM_NTASKS") or 1
    if num_tasks > 1 and num_asked is None:
        raise UsageError(
            f"this runs once, in the script of a Slurm job of {num_tasks} tasks: start it with srun to train with "
            f"{num_tasks} workers, or say with --workers how many are to run on this host"
        )
    return True


def _slurm_place(environ: Mapping[str, str]) -> Place:
    size = _number(environ, "SLURM_NTASKS")
    told = _number_if_said(environ, "WORLD_SIZE")
    if told not in (None, size):
        raise UsageError(f"Slurm started {size} tasks (SLURM_NTASKS), but WORLD_SIZE is {told}: unset WORLD_SIZE")
    hosts = expand_hosts(_text(environ, "SLURM_NODELIST", instead=("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")))
    if len(hosts) > size:
        raise UsageError(f"Slurm's {size} tasks cannot run on {len(hosts)} hosts ({', '.join(hosts[:3])}, …)")
    return Place(
        rank=_number(environ, "SLURM_PROCID"),
        size=size,
        local_rank=_number(environ, "SLURM_LOCALID"),
        local_size=_slurm_local_size(environ, size, len(hosts)),
        master_address=environ.get("MASTER_ADDR") or hosts[0],
        master_port=_number_if_said(environ, "MASTER_PORT") or _slurm_port(environ),
    )


def _slurm_local_size(environ: Mapping[str, str], size: int, num_hosts: int) -> int | None:
    """The tasks of this node, if that is said or can be no other."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE")
    node = _number_if_said(environ, "SLURM_NODEID")
    if text is not None and node is not None:
        counts = tasks_per_node(text)
        if node >= len(counts):
            raise UsageError(f"SLURM_NODEID is {node}, but Slurm's tasks per node, {text}, are of {len(counts)} nodes")
        return counts[node]
    return size // num_hosts if num_hosts in (1, size) else None


def _slurm_port(environ: Mapping[str, str]) -> int:
    """The same on all hosts; another one for another job, and for the next step of a job."""
    return (
        FIRST_PORT + (_number(environ, "SLURM_JOB_ID") + (_number_if_said(environ, "SLURM_STEP_ID") or 0)) % NUM_PORTS
    )


# -- of the whole job -------------------------------------------------------------------------------------------------
def secret_of(environ: Mapping[str, str]) -> bytes:
    """The job's secret; empty if it has none."""
    text = environ.get(SECRET, "")
    if text and len(text) < LEAST_SECRET_CHARS:
        raise UsageError(
            f"{SECRET} is to have at least {LEAST_SECRET_CHARS} characters, got {len(text)}; "
            "`openssl rand -hex 32` makes a good one"
        )
    return text.encode()


def launcher_of(environ: Mapping[str, str]) -> int | None:
    """Our own launcher's process, if that started this one: as one of several, or as the only one that is left."""
    return _number_if_said(environ, _LAUNCHER_PID)


def lead_nccl(environ: MutableMapping[str, str], interface: str) -> None:
    """NCCL takes the interface of the job, as gloo does, unless the user has told it another one."""
    environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # without the sign, any whose name begins so


def num_restarts(environ: Mapping[str, str]) -> int:
    """How often this job was started before."""
    return _number_if_said(environ, RESTART) or _number_if_said(environ, "TORCHELASTIC_RESTART_COUNT") or 0


# -- values -----------------------------------------------------------------------------------------------------------
def _number(environ: Mapping[str, str], name: str) -> int:
    text = _text(environ, name)
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise UsageError(f"the environment's {name} is to be a number, 0 or more, got {text!r}")
    return int(text)


def _number_if_said(environ: Mapping[str, str], name: str) -> int | None:
    return _number(environ, name) if environ.get(name) else None


def _text(environ: Mapping[str, str], name: str, instead: tuple[str, ...] = ()) -> str:
    for candidate in (*instead, name):
        if environ.get(candidate):
            return environ[candidate]
    raise UsageError(
        f"the environment has SLURM_PROCID={environ.get('SLURM_PROCID', '')}, as for a task of Slurm's, but not "
        f"{name}; start workers with srun, which sets all it needs, or unset SLURM_PROCID"
    )
