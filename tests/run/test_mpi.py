"""Places under mpirun, as Open MPI's and MPICH's variables tell them; secrets and restarts from the environment."""

from __future__ import annotations

import pytest

from poseidon.errors import UsageError
from poseidon.run.rendezvous import FIRST_PORT, NUM_PORTS, Place, find_place, num_restarts, secret_of


def open_mpi(rank: int, size: int = 4, local: int = 4, **more: str) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % local),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local),
        "PMIX_NAMESPACE": "1234567@1",
        **more,
    }


def hydra(rank: int, size: int = 4, **more: str) -> dict[str, str]:
    local = {"MPI_LOCALRANKID": str(rank % 2), "MPI_LOCALNRANKS": "2"}
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(size), **local, **more}


def test_on_one_host_nothing_else_is_needed():
    places = [find_place(open_mpi(rank)) for rank in range(4)]
    assert [(place.rank, place.local_rank) for place in places] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert {(place.master_address, place.size, place.local_size) for place in places} == {("127.0.0.1", 4, 4)}
    (port,) = {place.master_port for place in places}
    assert FIRST_PORT <= port < FIRST_PORT + NUM_PORTS
    assert find_place(open_mpi(0, PMIX_NAMESPACE="7654321@1")).master_port != port


@pytest.mark.parametrize("variables", [open_mpi(2, local=2), hydra(2)])
def test_several_hosts_need_a_place_to_meet(variables):
    with pytest.raises(
        UsageError, match=r"mpirun does not say where workers on several hosts meet: .*MASTER_ADDR=node1"
    ):
        find_place(variables)
    met = {**variables, "MASTER_ADDR": "n1", "MASTER_PORT": "2222"}
    assert find_place(met) == Place(2, 4, 0, 2, "n1", 2222)


def test_torchrun_wins_over_mpi_and_mpi_over_slurm():
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODELIST": "n[1-2]"}
    slurm["SLURM_JOB_ID"] = "7"
    assert find_place({**slurm, **open_mpi(3)}).rank == 3
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    assert find_place({**torchrun, **open_mpi(3)}).rank == 1
    # srun's own PMI variables say the same as Slurm's.
    assert find_place({**slurm, "PMI_RANK": "0", "PMI_SIZE": "2"}).master_address == "n1"
    # Hydra's proxies are tasks of Slurm: one on each host, with several workers below.
    assert find_place({**slurm, **hydra(3, MASTER_ADDR="n1", MASTER_PORT="9")}).rank == 3


def test_one_process_is_alone():
    assert find_place(open_mpi(0, size=1, local=1)) is None
    assert find_place({"PMI_RANK": "0", "PMI_SIZE": "1"}) is None


def test_half_an_environment_is_refused():
    with pytest.raises(UsageError, match="has OMPI_COMM_WORLD_RANK, as mpirun sets it, but not OMPI_COMM_WORLD_SIZE"):
        find_place({"OMPI_COMM_WORLD_RANK": "0"})


# -- of the whole job -------------------------------------------------------------------------------------------------
def test_secrets():
    assert secret_of({}) == b""
    assert secret_of({"POSEIDON_SECRET": "0123456789abcdef"}) == b"0123456789abcdef"
    with pytest.raises(UsageError, match="at least 16 characters, got 5; `openssl rand -hex 32`"):
        secret_of({"POSEIDON_SECRET": "12345"})


@pytest.mark.parametrize(
    ("environ", "number"),
    [({}, 0), ({"POSEIDON_RESTART": "2"}, 2), ({"TORCHELASTIC_RESTART_COUNT": "3"}, 3), ({"POSEIDON_RESTART": "0"}, 0)],
)
def test_restarts(environ, number):
    assert num_restarts(environ) == number
