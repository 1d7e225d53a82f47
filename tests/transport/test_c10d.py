"""c10d over real sockets between processes: what no transport inside one process can show."""

from __future__ import annotations

import socket

import pytest
import torch.distributed as dist

from poseidon.errors import PeerLost, TransportError, TransportTimeout
from poseidon.transport.c10d import C10dOptions, Master, connect
from poseidon.transport.c10d_work import StreamWork
from poseidon.transport.groups import Groups, GroupSpec
from tests.transport import contract, jobs
from tests.workers import WorkerPool

pytestmark = pytest.mark.xdist_group("workers")

LIMIT_S = 10.0  # within which every survivor must know


def survivors_of(pool: WorkerPool, victim: int, how: str, waiting: str, by_gloo: tuple[int, ...] = ()) -> list[dict]:
    lost = () if how == "exception" else (victim,)
    outcomes = pool.run(jobs.lose_a_worker, 3, lost=lost, victim=victim, how=how, waiting=waiting, by_gloo=by_gloo)
    assert outcomes[victim].error == {"exception": "ValueError", "stop": "Silent"}.get(how, "Dead")
    told = [outcome.value for outcome in outcomes if outcome.rank != victim]
    for outcome in outcomes:
        assert outcome.rank == victim or outcome.error is None, outcome.trace
    for value in told:
        assert value["type"] == "PeerLost"
        assert value["ranks"] == [victim]
        assert value["text"].startswith(f"rank {victim} (host {socket.gethostname()}, pid ")
        assert value["seconds"] < LIMIT_S
    return told


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    "waiting",
    [
        "all_reduce",
        "recv",
        "recv with a limit",
        "send",
        "recv from a survivor",
        "all_gather",
        "barrier",
        "new subgroup",
    ],
)
def test_a_killed_worker_is_named(worker_pool: WorkerPool, victim, waiting):
    for value in survivors_of(worker_pool, victim, "kill", waiting):
        assert "is lost: the process ended, its connection closed; while" in value["text"]


@pytest.mark.parametrize("waiting", ["recv", "recv with a limit", "send", "all_gather", "barrier"])
def test_a_killed_worker_is_named_where_messages_go_by_gloo(worker_pool: WorkerPool, waiting):
    for value in survivors_of(worker_pool, 1, "kill", waiting, by_gloo=(0, 1, 2)):
        assert "is lost: the process ended, its connection closed; while" in value["text"]


@pytest.mark.parametrize("by_gloo", [(), (0, 1, 2)], ids=["native", "gloo"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_worker_killed_in_the_midst_of_a_message_is_named(worker_pool: WorkerPool, victim, by_gloo):
    """Gloo leaves a receive asleep whose message stops half way."""
    survivors_of(worker_pool, victim, "kill in the midst of a message", "message under way", by_gloo)


@pytest.mark.parametrize(("victim", "waiting"), [(0, "recv from a survivor"), (2, "all_reduce")])
def test_a_hung_worker_is_named(worker_pool: WorkerPool, victim, waiting):
    for value in survivors_of(worker_pool, victim, "stop", waiting):
        assert "is lost: no sign of life for" in value["text"]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_gives_up_says_why(worker_pool: WorkerPool, victim):
    for value in survivors_of(worker_pool, victim, "exception", "all_reduce"):
        assert "gave up: ValueError: label 12 is out of range; while " in value["text"]


def test_a_worker_that_wakes_up_too_late_is_told(worker_pool: WorkerPool):
    told = worker_pool.results(jobs.stop_for_a_while, 3)
    for text in (told[0], told[2]):
        assert text.startswith("rank 1 (host")
    assert told[1] is not None


def test_leaving_in_peace_is_no_loss(worker_pool: WorkerPool):
    told = worker_pool.results(jobs.leave_early, 3)
    assert told[0].startswith("PeerLost: rank 1 (host")
    assert "left the job before that was over; while receiving from rank 1" in told[0]
    assert told[1:] == ["", ""]


@pytest.mark.parametrize(
    "clause", [contract.messages_of_every_dtype_arrive, contract.tags_overtake_and_channels_keep_order,
               contract.collectives_agree_with_loops]
)  # fmt: skip
def test_messages_staged_in_host_memory(worker_pool: WorkerPool, clause):
    worker_pool.results(jobs.keep_contract_staged, 3, clause=clause.__name__)


@pytest.mark.parametrize(
    "clause", [contract.all_reduce_sums, contract.subgroups_are_renumbered_and_apart, contract.collectives_side_by_side]
)
def test_with_delays_and_reordering(worker_pool: WorkerPool, clause):
    worker_pool.results(jobs.keep_contract_with_faults, 3, clause=clause.__name__)


def test_payload_is_counted(worker_pool: WorkerPool):
    """All-reduce of 120 bytes: 2·120·2/3; broadcast of 40 from rank 1: to 2, who passes it... 1 → 2, then 1 → 0."""
    block = 200_000
    counted = worker_pool.results(jobs.count_bytes, 3)
    assert [row[:2] for row in counted] == [[160, 160]] * 3
    assert [row[2:4] for row in counted] == [[0, 40], [80, 0], [0, 40]]
    assert [row[4:] for row in counted] == [[2 * block, 2 * block]] * 3


def test_built_beside_a_process_group(worker_pool: WorkerPool):
    assert worker_pool.results(jobs.beside_a_group, 3) == [[3.0, 3.0]] * 3


def test_close_leaves_no_thread(worker_pool: WorkerPool):
    assert worker_pool.results(jobs.threads_after_close, 3) == [[], [], []]


def test_what_cannot_be_summed_is_refused(worker_pool: WorkerPool):
    texts = worker_pool.results(jobs.refuse_to_sum_bools, 2)
    assert texts[0].startswith("all-reduce cannot sum torch.bool; convert to one of ['torch.bfloat16'")


def test_nobody_at_the_masters_address(worker_pool: WorkerPool):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        text = worker_pool.results(jobs.connect_to_nobody, 1, port=unused.getsockname()[1])[0]
    assert text.startswith("TransportTimeout: rank 1 cannot reach rank 0 at 127.0.0.1 port")
    assert "check that rank 0 was started" in text


def test_the_masters_port_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TransportError, match=f"rank 0 cannot listen on port {port}.*choose another port"):
            connect(0, 1, Master("127.0.0.1", port), C10dOptions("127.0.0.1", join_s=2.0))


class FakeNccl:
    """Stands in for ProcessGroupNCCL where there is no GPU: records how it is made and used."""

    made: list[FakeNccl] = []

    class Options:
        _timeout = None

    def __init__(self, store: object, rank: int, size: int, options: Options) -> None:
        self.place, self.limit, self.was_aborted = (rank, size), options._timeout, False
        FakeNccl.made.append(self)

    def abort(self) -> None:
        self.was_aborted = True


def test_cuda_tensors_go_by_nccl(monkeypatch):
    monkeypatch.setattr(dist, "ProcessGroupNCCL", FakeNccl, raising=False)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    groups = Groups(dist.HashStore(), "127.0.0.1", 5.0, 60.0)
    spec = GroupSpec("g", 1, 2, "cuda")
    group = groups.get(spec)
    assert groups.get(spec) is group
    assert (group.place, group.limit.total_seconds()) == ((1, 2), 60.0)
    groups.break_all()
    assert group.was_aborted


class FakeStreamOperation:
    """As NCCL's: `wait` only orders streams; over after some looks."""

    def __init__(self, num_looks: int, error: str = "") -> None:
        self.num_looks, self.error, self.num_waits = num_looks, error, 0

    def is_completed(self) -> bool:
        self.num_looks -= 1
        return self.num_looks < 0

    def wait(self) -> None:
        self.num_waits += 1
        if self.error:
            raise RuntimeError(self.error)


@pytest.fixture
def lonely_transport():
    transport = connect(0, 1, Master("127.0.0.1", 0), C10dOptions("127.0.0.1", join_s=5.0))
    yield transport
    transport.close()


def test_a_job_of_one_worker(lonely_transport):
    contract.all_reduce_sums(lonely_transport)
    lonely_transport.barrier(1.0)
    assert lonely_transport.bytes_sent == 0
    group = lonely_transport.subgroup([0])
    group.barrier(1.0)
    assert (group.rank, group.size) == (0, 1)
    lonely_transport.close()  # and once more by the fixture


def test_nccl_is_waited_for_on_the_stream_and_never_given_a_limit(lonely_transport):
    job = lonely_transport._job
    never = FakeStreamOperation(num_looks=1 << 30)
    work = StreamWork(job, never, "in the all-reduce of 4 B", (0,))
    work.wait()
    assert never.num_waits == 1
    with pytest.raises(TransportTimeout, match=r"in the all-reduce of 4 B: not over after 0.01 s"):
        work.wait(0.01)
    assert not work.done()
    soon = FakeStreamOperation(num_looks=3)
    StreamWork(job, soon, "this", (0,)).wait(20.0)
    assert soon.num_waits == 1
    job.health.give_up("enough")
    assert work.done()
    with pytest.raises(PeerLost, match=r"rank 0 .* gave up: enough; while in the all-reduce of 4 B"):
        work.wait()


def test_devices_without_an_engine_are_refused(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    groups = Groups(dist.HashStore(), "127.0.0.1", 5.0, 60.0)
    with pytest.raises(TransportError, match="need a torch built with NCCL"):
        groups.get(GroupSpec("g", 0, 2, "cuda"))
    with pytest.raises(TransportError, match="tensors on 'meta' cannot travel between workers"):
        groups.get(GroupSpec("g", 0, 2, "meta"))
