"""Who am I: environments as torchrun, srun and our launcher leave them, whole, partial and contradictory."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poseidon.errors import UsageError
from poseidon.run.rendezvous import FIRST_PORT, NUM_PORTS, Place, find_place, lead_nccl, variables_of
from poseidon.run.slurm import expand_hosts, tasks_per_node

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODELIST": "node[07-08]",
    "SLURM_JOB_ID": "123456",
}


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: text for name, text in environ.items() if name not in names}


# -- alone ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HOME": "/root", "MASTER_ADDR": "left.over", "MASTER_PORT": "1"},
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        {**SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_NODELIST": "n1"},
        # the script of an sbatch job of one task, which may also not say how many there are
        {"ENVIRONMENT": "BATCH", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"},
        {"ENVIRONMENT": "BATCH", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
    ],
)
@pytest.mark.parametrize("num_asked", [None, 1, 4])
def test_a_process_that_is_alone_has_no_place(environ, num_asked):
    assert find_place(environ, num_asked) is None


def test_a_batch_script_may_start_workers_of_its_own():
    script = {**SLURM, "ENVIRONMENT": "BATCH", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert find_place(script, 2) is None
    with pytest.raises(UsageError, match=r"the script of a Slurm job of 4 tasks: start it with srun .* --workers"):
        find_place(script)
    task = find_place({**script, "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"})
    assert task is not None
    assert task.rank == 3


# -- torchrun -------------------------------------------------------------------------------------------------------
def test_torchrun():
    assert find_place(TORCHRUN) == Place(5, 8, 1, 4, "10.0.0.1", 29500)
    assert find_place(TORCHRUN, 8) == Place(5, 8, 1, 4, "10.0.0.1", 29500)
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert find_place({**TORCHRUN, **agent}) == Place(5, 8, 1, 4, "10.0.0.1", 29500, store_prefix="poseidon")
    assert find_place({**TORCHRUN, **agent, "TORCHELASTIC_USE_AGENT_STORE": "False"}).store_prefix == ""


def test_nccl_takes_the_interface_of_the_job_unless_told_otherwise():
    environ: dict[str, str] = {}
    lead_nccl(environ, "eth1")
    assert environ == {"NCCL_SOCKET_IFNAME": "=eth1"}
    lead_nccl(environ, "eth2")
    assert environ == {"NCCL_SOCKET_IFNAME": "=eth1"}


def test_workers_started_by_hand_need_not_know_their_node():
    assert find_place(without(TORCHRUN, "LOCAL_RANK", "LOCAL_WORLD_SIZE")) == Place(5, 8, None, None, "10.0.0.1", 29500)


def test_torchrun_under_srun_counts_workers_not_agents():
    assert find_place({**SLURM, **TORCHRUN}).rank == 5


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        (without(TORCHRUN, "WORLD_SIZE"), "says RANK=5, LOCAL_RANK=1, .* but not WORLD_SIZE; set all of RANK, WORLD_S"),
        (without(TORCHRUN, "RANK"), "but not RANK;"),
        (without(TORCHRUN, "MASTER_ADDR", "MASTER_PORT"), "but not MASTER_ADDR and MASTER_PORT;"),
        ({"WORLD_SIZE": "4"}, "the environment says WORLD_SIZE=4, .* but not RANK and MASTER_ADDR and MASTER_PORT"),
        ({"LOCAL_RANK": "0"}, "the environment says LOCAL_RANK=0, "),
        ({**TORCHRUN, "RANK": ""}, "but not RANK;"),
        ({**TORCHRUN, "RANK": "8"}, "rank 8 of 8; ranks are 0 … 7"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK is to be a number, 0 or more, got '-1'"),
        ({**TORCHRUN, "RANK": "٣"}, "RANK is to be a number"),
        ({**TORCHRUN, "WORLD_SIZE": "all"}, "WORLD_SIZE is to be a number, 0 or more, got 'all'"),
        ({**TORCHRUN, "WORLD_SIZE": "0", "RANK": "0"}, "rank 0 of 0"),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, "local rank 4 of 4; they are 0 … 3"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "9"}, "a node has 1 to 8 workers of a job of 8, got 9"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "0"}, "a node has 1 to 8 workers"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "the port .* is within 1 … 65535, got 70000"),
        ({**TORCHRUN, "MASTER_PORT": "9" * 30}, "MASTER_PORT is to be a number"),
    ],
)
def test_a_partial_or_contradictory_environment_is_refused(environ, problem):
    with pytest.raises(UsageError, match=problem):
        find_place(environ)


@pytest.mark.parametrize("environ", [TORCHRUN, SLURM])
def test_another_number_of_workers_is_refused(environ):
    with pytest.raises(UsageError, match=r"one of \d workers, but --workers says 3; leave --workers out"):
        find_place(environ, 3)


# -- Slurm ----------------------------------------------------------------------------------------------------------
def test_slurm():
    assert find_place(SLURM) == Place(3, 4, 1, None, "node07", FIRST_PORT + 123456 % NUM_PORTS)


def test_slurm_says_how_many_tasks_a_node_has():
    nodes = {**SLURM, "SLURM_NODELIST": "a,b,c", "SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x2),1"}
    sizes = [find_place({**nodes, "SLURM_LOCALID": "0", "SLURM_NODEID": str(node)}).local_size for node in range(3)]
    assert sizes == [2, 2, 1]
    with pytest.raises(UsageError, match=r"SLURM_NODEID is 3, but .* 2\(x2\),1, are of 3 nodes"):
        find_place({**nodes, "SLURM_NODEID": "3"})
    assert find_place({**SLURM, "SLURM_NODELIST": "alone"}).local_size == 4
    assert find_place({**SLURM, "SLURM_NODELIST": "n[1-4]", "SLURM_LOCALID": "0"}).local_size == 1


def test_steps_of_a_job_meet_at_different_ports_of_their_own_nodes():
    steps = [find_place({**SLURM, "SLURM_STEP_ID": str(step)}).master_port for step in range(3)]
    assert len(set(steps)) == 3
    assert find_place({**SLURM, "SLURM_STEP_NODELIST": "node08"}).master_address == "node08"


def test_a_place_to_meet_may_be_set_under_slurm():
    place = find_place({**SLURM, "MASTER_ADDR": "ib0.node07", "MASTER_PORT": "1234", "WORLD_SIZE": "4"})
    assert (place.master_address, place.master_port) == ("ib0.node07", 1234)


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        (without(SLURM, "SLURM_NTASKS"), "has SLURM_PROCID=3, .* but not SLURM_NTASKS; start workers with srun"),
        (without(SLURM, "SLURM_LOCALID"), "but not SLURM_LOCALID"),
        (without(SLURM, "SLURM_NODELIST"), "but not SLURM_NODELIST"),
        (without(SLURM, "SLURM_JOB_ID"), "but not SLURM_JOB_ID"),
        ({**SLURM, "SLURM_PROCID": "4"}, "rank 4 of 4"),
        ({**SLURM, "WORLD_SIZE": "2"}, r"Slurm started 4 tasks \(SLURM_NTASKS\), but WORLD_SIZE is 2"),
        ({**SLURM, "SLURM_NODELIST": "n[1-5]"}, "4 tasks cannot run on 5 hosts"),
        ({**SLURM, "SLURM_NODELIST": "n[1-"}, r"like node\[01-03,07\],gpu5; got 'n\[1-'"),
    ],
)
def test_a_partial_or_contradictory_task_is_refused(environ, problem):
    with pytest.raises(UsageError, match=problem):
        find_place(environ)


# -- our launcher ---------------------------------------------------------------------------------------------------
@given(
    size=st.integers(2, 64),
    rank=st.integers(0, 63),
    port=st.integers(1, 65535),
    pid=st.integers(1, 2**22),
    around=st.sampled_from([{}, TORCHRUN, SLURM, {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}]),
)
def test_the_launchers_variables_are_read_back(size, rank, port, pid, around):
    place = Place(rank % size, size, rank % size, size, "127.0.0.1", port, launcher_pid=pid)
    assert find_place(variables_of(place, around)) == place
    assert find_place(variables_of(place, around), size) == place


# -- lists of hosts ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", "node1"),
        ("node[01-03,07]", "node01 node02 node03 node07"),
        ("a,b,c-2.cluster", "a b c-2.cluster"),
        ("node[9-11]", "node9 node10 node11"),
        ("node[098-101],login", "node098 node099 node100 node101 login"),
        ("r[1-2]n[3-4]", "r1n3 r1n4 r2n3 r2n4"),
        ("n[1,3]-ib", "n1-ib n3-ib"),
        ("a[1-2],b[1,2],c", "a1 a2 b1 b2 c"),
    ],
)
def test_lists_of_hosts(text, hosts):
    assert expand_hosts(text) == hosts.split()


@given(st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 5)), min_size=1, max_size=6), st.integers(1, 5))
def test_ranges_of_hosts_have_all_their_numbers(ranges, width):
    parts = [f"{first:0{width}}-{first + more:0{width}}" if more else f"{first:0{width}}" for first, more in ranges]
    numbers = [first + k for first, more in ranges for k in range(more + 1)]
    found = expand_hosts(f"host[{','.join(parts)}]")
    assert [int(re.sub("^host", "", host)) for host in found] == numbers
    assert all(len(host) >= 4 + width for host in found)


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,,b", "n[", "n]", "n[1", "n[1-]", "n[3-1]", "n[a-b]", "n[1]]", "n[[1]]", "n[]", "a b", "n[1-2", "$(x)"],
)
def test_malformed_lists_of_hosts(text):
    with pytest.raises(UsageError, match="Slurm writes lists of hosts like"):
        expand_hosts(text)


@pytest.mark.parametrize("text", ["n[0-999999999]", "n[1-400]m[1-400]"])
def test_a_list_of_hosts_beyond_reason(text):
    with pytest.raises(UsageError, match="at most 100000 hosts"):
        expand_hosts(text)


@pytest.mark.parametrize(("text", "counts"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,3(x2)", [1, 3, 3])])
def test_tasks_per_node(text, counts):
    assert tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "x", "2(x)", "2(3)", "-1", "2(x999999)", "1,,2"])
def test_malformed_tasks_per_node(text):
    with pytest.raises(UsageError, match=r"like 2\(x3\),1; got"):
        tasks_per_node(text)
