"""Every transport keeps the contract: in-process, the same with delays and reordering, and c10d over real sockets."""

from __future__ import annotations

import pytest

from poseidon.transport.faulty import Faults, FaultyTransport
from poseidon.transport.inproc import run_workers
from poseidon.transport.levels import share_nodes
from poseidon.transport.paced import PacedTransport
from poseidon.transport.pacing import Pace
from tests.transport import contract, jobs
from tests.workers import WorkerPool

pytestmark = pytest.mark.xdist_group("workers")

CLAUSES = [
    contract.messages_of_every_dtype_arrive,
    contract.a_message_goes_straight_into_a_slice,
    contract.tags_overtake_and_channels_keep_order,
    contract.an_empty_message_is_no_message,
    contract.any_thread_may_wait,
    contract.a_wait_that_timed_out_can_be_repeated,
    contract.a_collective_nobody_joins_holds_up_no_message,
    contract.all_reduce_sums,
    contract.groups_reduce_and_broadcast_among_themselves,
    contract.broadcast_spreads_the_roots_values,
    contract.a_barrier_names_who_is_missing,
    contract.subgroups_are_renumbered_and_apart,
    contract.misuse_is_refused,
    contract.collectives_agree_with_loops,
    contract.sums_in_pairs_are_the_same_everywhere,
    contract.parameters_travel_like_any_tensor,
    contract.collectives_of_groups,
    contract.collectives_side_by_side,
    contract.collectives_of_a_subgroup_hold_up_no_others,
]
every_clause = pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)


@every_clause
@pytest.mark.parametrize("size", [3, 4])
def test_inproc(clause, size):
    answers = run_workers(size, clause)
    assert all(answer == answers[0] for answer in answers)


@every_clause
@pytest.mark.parametrize("seed", [0, 1])
def test_faulty(clause, seed):
    answers = run_workers(3, lambda transport: clause(FaultyTransport(transport, Faults(seed))))
    assert all(answer == answers[0] for answer in answers)


@every_clause
@pytest.mark.parametrize(("limit_bps", "piece_bytes"), [(400e6, 4096), (50e9, 64)])
def test_paced(clause, limit_bps, piece_bytes, monkeypatch):
    if clause in (contract.collectives_agree_with_loops, contract.collectives_side_by_side):
        piece_bytes = 4096  # their messages are long
    monkeypatch.setattr("poseidon.transport.pacing.MAX_PIECE_BYTES", piece_bytes)
    answers = run_workers(3, lambda transport: clause(PacedTransport(transport, Pace(limit_bps))))
    assert all(answer == answers[0] for answer in answers)


@every_clause
def test_paced_levels(clause, monkeypatch):
    monkeypatch.setattr("poseidon.transport.pacing.MAX_PIECE_BYTES", 4096)

    def work(transport):
        return clause(share_nodes(PacedTransport(transport, Pace(1e9)), (0, 0, 1)).transport)

    answers = run_workers(3, work)
    assert all(answer == answers[0] for answer in answers)


# Sums of nodes in this order are sums in the order of ranks, which the contract asks for to the bit.
@every_clause
@pytest.mark.parametrize("nodes", [(0, 0, 0), (0, 0, 1), (0, 0, 0, 0)], ids=str)
def test_levels(clause, nodes):
    answers = run_workers(len(nodes), lambda transport: clause(share_nodes(transport, nodes).transport))
    assert all(answer == answers[0] for answer in answers)


@every_clause
def test_levels_over_a_faulty_network(clause):
    def work(transport):
        return clause(share_nodes(FaultyTransport(transport, Faults(3)), (0, 0, 1)).transport)

    answers = run_workers(3, work)
    assert all(answer == answers[0] for answer in answers)


@every_clause
@pytest.mark.parametrize("nodes", [(0, 0, 0), (0, 0, 1)], ids=str)
def test_levels_over_c10d(worker_pool: WorkerPool, clause, nodes):
    answers = worker_pool.results(jobs.keep_contract_on_nodes, 3, clause=clause.__name__, nodes=nodes)
    assert all(answer == answers[0] for answer in answers)


@every_clause
@pytest.mark.parametrize("by_gloo", [(), (0, 1, 2), (1,)], ids=["native", "gloo", "gloo, since one has nothing else"])
def test_c10d(worker_pool: WorkerPool, clause, by_gloo):
    answers = worker_pool.results(jobs.keep_contract, 3, clause=clause.__name__, by_gloo=by_gloo)
    assert all(answer == answers[0] for answer in answers)


def test_every_clause_is_tested():
    written = [
        name for name, thing in vars(contract).items() if callable(thing) and thing.__module__ == contract.__name__
    ]
    helpers = {"values", "rough", "sum_in_order"}
    assert {clause.__name__ for clause in CLAUSES} == set(written) - helpers
