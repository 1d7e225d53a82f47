"""Which snapshot a run goes on from; workers that share no disk; and that no record is trained twice or left out."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from poseidon.plan import Scheme
from poseidon.run.resume import AUTO, Resume, agree_on_snapshot, find_snapshot
from poseidon.run.roundtable import Roundtable
from poseidon.solver import newest_good
from poseidon.transport.inproc import run_workers
from tests.data.make import datum, write_lmdb
from tests.run.jobs import built, in_team, parameters, solver_param
from tests.solver.small import net_text, write_data

NUM_RECORDS = 37


def saved(folder: Path, iteration: int, job: str = "") -> Path:
    """A snapshot of a small net; the folder's own data."""
    listing = write_data(folder)
    solver, _ = built(solver_param(net_text(listing), f'snapshot_prefix: "{folder}/s"'))
    solver.job = job
    solver.step(iteration)
    return solver.snapshot().state


def test_auto_takes_the_newest_good_one(tmp_path):
    prefix = f"{tmp_path}/s"
    assert find_snapshot(prefix, Resume(AUTO)) == ""
    older, newer = saved(tmp_path, 2), saved(tmp_path, 4)
    assert find_snapshot(prefix, Resume(AUTO)) == str(newer)
    newer.with_suffix(".caffemodel").write_bytes(b"damaged")
    assert find_snapshot(prefix, Resume(AUTO)) == str(older)
    assert find_snapshot(prefix, Resume("named.solverstate")) == "named.solverstate"
    assert find_snapshot(prefix, Resume()) == ""


def test_a_restart_takes_its_own_jobs_only(tmp_path):
    """What an earlier job left in the folder, with more iterations, is not taken for the result of this one."""
    prefix = f"{tmp_path}/s"
    saved(tmp_path, 6, "yesterday")
    again = Resume("", "today", is_restart=True)
    assert find_snapshot(prefix, again) == "", "as at the first start"
    assert find_snapshot(prefix, Resume("begin.solverstate", "today", is_restart=True)) == "begin.solverstate"
    own = saved(tmp_path, 2, "today")
    assert find_snapshot(prefix, again) == str(own)
    assert find_snapshot(prefix, Resume(AUTO, "today")).endswith("s_iter_6.solverstate")


@pytest.mark.parametrize("owner", [0, 2])
def test_the_newest_one_is_handed_to_those_who_lack_it(tmp_path, owner):
    folders = [tmp_path / f"host{rank}" for rank in range(3)]
    for folder in folders:
        folder.mkdir()
    saved(folders[1], 2)
    newest = saved(folders[owner], 5)

    def work(transport):
        prefix = f"{folders[transport.rank]}/s"
        return agree_on_snapshot(Roundtable(transport), prefix, Resume(AUTO))

    found = run_workers(3, work, timeout_s=60)
    assert found == [str(folder / newest.name) for folder in folders]
    for folder in folders:
        assert newest_good(f"{folder}/s") == folder / newest.name
        for path in newest.parent.glob("s_iter_5.*"):
            assert (folder / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_what_a_narrow_wire_owes_is_handed_out_too(tmp_path, wire):
    """Rank 1 has a disk of its own and goes on as if both had one: bit for bit as a run that was not interrupted."""
    listing = write_data(tmp_path)
    folders = [tmp_path / f"host{rank}" for rank in range(2)]
    for folder in folders:
        folder.mkdir()

    def param(rank: int):
        return solver_param(net_text(listing, batch=2), f'max_iter: 9 snapshot: 4 snapshot_prefix: "{folders[rank]}/s"')

    def begin(worker):
        worker.solver.step(4)  # which rank 0 alone writes
        worker.solver.step(5)
        return parameters(worker.solver)

    def go_on(worker):
        table, prefix = Roundtable(worker.transport), f"{folders[worker.transport.rank]}/s"
        found = agree_on_snapshot(table, prefix, Resume(AUTO))
        worker.solver.restore(found)
        worker.solver.step(5)
        return parameters(worker.solver)

    uninterrupted = in_team(2, param, begin, scheme=Scheme.RING, wire=wire)
    for path in (*folders[0].glob("s_iter_8.*"), *folders[1].iterdir()):
        path.unlink()
    again = in_team(2, param, go_on, scheme=Scheme.RING, wire=wire)
    for path in folders[0].glob("s_iter_4.*"):
        assert (folders[1] / path.name).read_bytes() == path.read_bytes()
    for mine, before in zip(again, uninterrupted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, before, strict=True))


def test_who_shares_a_disk_copies_nothing(tmp_path):
    newest = saved(tmp_path, 3)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    prefix = f"{tmp_path}/s"
    found = run_workers(2, lambda t: agree_on_snapshot(Roundtable(t), prefix, Resume(AUTO)), timeout_s=60)
    assert found == [str(newest)] * 2
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_restart_takes_its_own_jobs_from_another_host_rather_than_older_work_of_others(tmp_path):
    folders = [tmp_path / f"host{rank}" for rank in range(2)]
    for folder in folders:
        folder.mkdir()
    saved(folders[0], 6, "yesterday")
    own = saved(folders[1], 2, "today")
    again = Resume(AUTO, "today", is_restart=True)
    found = run_workers(2, lambda t: agree_on_snapshot(Roundtable(t), f"{folders[t.rank]}/s", again), timeout_s=60)
    assert found == [str(folder / own.name) for folder in folders]


def test_one_that_knows_of_a_restart_is_enough(tmp_path):
    """torchrun's agents each count their own."""
    saved(tmp_path, 6, "yesterday")
    own = saved(tmp_path, 2, "today")
    prefix = f"{tmp_path}/s"
    found = run_workers(
        2, lambda t: agree_on_snapshot(Roundtable(t), prefix, Resume("", "today", is_restart=t.rank == 1)), timeout_s=60
    )
    assert found == [str(own)] * 2


def test_work_that_is_lost_with_its_host_is_told(tmp_path, caplog):
    again = Resume("", "today", is_restart=True)
    prefix = f"{tmp_path}/s"
    run_workers(2, lambda t: agree_on_snapshot(Roundtable(t), prefix, again), timeout_s=60)
    find_snapshot(prefix, again)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2, "rank 0, and one that is alone"
    assert all("no snapshot of this job" in line and "training begins anew" in line for line in told)
    caplog.clear()
    saved(tmp_path, 2, "today")
    find_snapshot(prefix, again)
    find_snapshot(prefix, Resume(AUTO, "today"))
    assert not caplog.records


def test_nobody_has_one(tmp_path):
    found = run_workers(2, lambda t: agree_on_snapshot(Roundtable(t), f"{tmp_path}/s", Resume(AUTO)), timeout_s=60)
    assert found == ["", ""]


# -- the ledger -------------------------------------------------------------------------------------------------------
@pytest.fixture
def records(tmp_path) -> str:
    """An LMDB whose records say their number, in the label."""
    pixels = np.random.RandomState(0).randint(0, 256, (NUM_RECORDS, 1, 2, 2)).astype(np.uint8)
    return write_lmdb(tmp_path / "records", [datum(p, number) for number, p in enumerate(pixels)])


def ledger_net(source: str, batch: int) -> str:
    return f"""
        layer {{ name: "data" type: "Data" top: "data" top: "label"
                 data_param {{ source: "{source}" batch_size: {batch} backend: LMDB }} }}
        layer {{ name: "fc" type: "InnerProduct" bottom: "data" top: "y"
                 inner_product_param {{ num_output: {NUM_RECORDS} weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }}
        layer {{ name: "told" type: "Silence" bottom: "label" }}
    """


def trained_records(worker, num_iterations: int) -> list[list[int]]:
    """The numbers of the records this worker trains with, by iteration."""
    solver, seen = worker.solver, []
    layer = solver.net.layers["told"]
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(_numbers(inputs)))
    solver.step(num_iterations)
    handle.remove()
    return seen


def _numbers(inputs) -> list[int]:
    (bottom,) = inputs if not isinstance(inputs[0], (list, tuple)) else inputs[0]
    return [int(number) for number in bottom.reshape(-1).tolist()]


def merged(by_rank: list[list[list[int]]]) -> list[list[int]]:
    """The records of all workers, by iteration."""
    return [sorted(itertools.chain(*batches)) for batches in zip(*by_rank, strict=True)]


@pytest.mark.parametrize(
    ("sizes", "schemes"),
    [((3, 2), (Scheme.SERVER, Scheme.RING)), ((2, 4), (Scheme.FACTORS, Scheme.SERVER)), ((2, 1), (None, None))],
)
def test_no_record_is_trained_twice_or_left_out(records, tmp_path, sizes, schemes):
    """From one number of workers and one scheme to others, over ends of epochs: the ledger has no gap."""
    prefix = f'snapshot_prefix: "{tmp_path}/s"'
    param = solver_param(ledger_net(records, 2), prefix)

    def begin(worker):
        found = trained_records(worker, 4)
        worker.solver.snapshot()
        trained_records(worker, 3)  # lost with the worker that dies: not in the ledger
        return found

    def go_on(worker):
        worker.solver.restore(newest_good(f"{tmp_path}/s"))
        return trained_records(worker, 9)

    ledger = merged(in_team(sizes[0], param, begin, scheme=schemes[0]))
    ledger += merged(in_team(sizes[1], param, go_on, scheme=schemes[1]))
    numbers = itertools.cycle(range(NUM_RECORDS))
    expected = [2 * size for size, count in zip(sizes, (4, 9), strict=True) for _ in range(count)]
    assert ledger == [sorted(itertools.islice(numbers, count)) for count in expected]
