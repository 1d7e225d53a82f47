"""Tests over several workers: the scores, and where the nets stand afterwards, against one worker's."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from poseidon.errors import SolverError
from poseidon.run.dealing import Way, WorkerDeal
from poseidon.run.roundtable import Roundtable
from poseidon.solver import Action, events
from poseidon.solver.continuation import net_state
from poseidon.solver.team import Sums
from poseidon.transport.inproc import run_workers
from tests.data.make import datum, write_lmdb
from tests.run.jobs import PROMPT, built, in_team, picture_net, solver_param
from tests.solver.small import net_text


def scores(heard):
    return [
        (event.iteration, event.net_index, event.loss, *(output.value for output in event.outputs))
        for event in heard.of(events.TestDone)
    ]


def after_tests(worker, num_tests=2):
    """Scores, and where the test nets stand, after some tests."""
    for _ in range(num_tests):
        worker.solver.test_all()
    return scores(worker.heard), [net_state(net) for net in worker.solver.test_nets]


def assert_like_one_worker(size, param, num_tests=2):
    by_rank = in_team(size, param, lambda worker: after_tests(worker, num_tests))
    assert all(found == by_rank[0] for found in by_rank[1:])
    solver, heard = built(param)
    for _ in range(num_tests):
        solver.test_all()
    expected = scores(heard)
    assert len(expected) == num_tests * len(solver.test_nets)
    torch.testing.assert_close(torch.tensor(by_rank[0][0]), torch.tensor(expected), rtol=1e-12, atol=0)
    assert by_rank[0][1] == [net_state(net) for net in solver.test_nets]


TESTING = "test_interval: 5 test_compute_loss: true test_initialization: false"


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("num_batches", [1, 4, 6, 7])
def test_each_batch_is_evaluated_once(pictures, size, num_batches):
    """Crops of the TEST phase are fixed, the epoch of 26 ends inside of batches of 3, a later test goes on there."""
    text = f"{TESTING} test_iter: {num_batches} test_iter: 2"
    assert_like_one_worker(size, solver_param(picture_net(pictures, 2, test_batch=3), text), num_tests=3)


@pytest.mark.parametrize("size", [2, 3])
def test_shuffled_rows(listing, size):
    text = f"{TESTING} test_iter: 7"
    assert_like_one_worker(size, solver_param(net_text(listing, batch=4, shuffle=True), text), num_tests=3)


def test_random_draws_are_those_of_the_batch():
    net = """
        layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 4 dim: 3 }
                 data_filler { type: "gaussian" std: 1 } } }
        layer { name: "n" type: "Reduction" bottom: "x" top: "norm" reduction_param { operation: SUMSQ axis: 1 } }"""
    assert_like_one_worker(3, solver_param(net, f"{TESTING} test_iter: 5"))


def test_no_batches_give_no_scores(listing):
    param = solver_param(net_text(listing), "test_interval: 2 test_iter: 0")
    heard = in_team(2, param, lambda worker: (worker.solver.test_all(), worker.heard.of(events.TestDone))[1])
    assert heard == [[events.TestDone(0, 0, None, ())]] * 2


# -- nets whose batches cannot be dealt out ---------------------------------------------------------------------------
CARRYING = """
    layer {{ name: "rows" type: "HDF5Data" top: "x" top: "y" hdf5_data_param {{ source: "{0}" batch_size: 4 }} }}
    layer {{ name: "steps" type: "Reshape" bottom: "x" top: "steps"
             reshape_param {{ shape {{ dim: 4 dim: 1 dim: 3 }} }} }}
    layer {{ name: "cont" type: "DummyData" top: "cont" dummy_data_param {{ shape {{ dim: 4 dim: 1 }}
             data_filler {{ type: "constant" value: 1 }} }} }}
    layer {{ name: "lstm" type: "LSTM" bottom: "steps" bottom: "cont" top: "h" recurrent_param {{ num_output: 2
             weight_filler {{ type: "uniform" min: -1 }} }} }}
    layer {{ name: "mean" type: "Reduction" bottom: "h" top: "mean" loss_weight: 1
             reduction_param {{ operation: MEAN }} }}
"""


def test_states_carried_from_batch_to_batch(listing):
    assert_like_one_worker(2, solver_param(CARRYING.format(listing), f"{TESTING} test_iter: 5"))


def test_batch_statistics_in_tests(pictures):
    """use_global_stats: false in a test net: its running sums follow every batch, in order."""
    middle = """layer { name: "bn" type: "BatchNorm" bottom: "h" top: "h"
                batch_norm_param { use_global_stats: false } }"""
    param = solver_param(picture_net(pictures, 2, middle=middle), f"{TESTING} test_iter: 5")
    assert_like_one_worker(3, param)


PYTHON_LAYERS = """
import caffe

class Counting(caffe.Layer):
    def setup(self, bottom, top):
        self.count = 0

    def reshape(self, bottom, top):
        top[0].reshape(2)

    def forward(self, bottom, top):
        top[0].data[...] = (self.count, self.count ** 2)
        self.count += 1
"""


def test_python_sources(tmp_path, monkeypatch):
    (tmp_path / "counting_layers.py").write_text(PYTHON_LAYERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "counting_layers", raising=False)
    net = 'layer { name: "c" type: "Python" top: "c" python_param { module: "counting_layers" layer: "Counting" } }'
    assert_like_one_worker(2, solver_param(net, f"{TESTING} test_iter: 3"))


def test_memory_data_is_each_workers_own():
    net = """
        layer { name: "m" type: "MemoryData" top: "x" top: "l"
                memory_data_param { batch_size: 2 channels: 1 height: 1 width: 1 } }
        layer { name: "s" type: "Silence" bottom: "l" }
        layer { name: "n" type: "Reduction" bottom: "x" top: "mean" reduction_param { operation: MEAN } }"""

    def act(worker):
        data = np.arange(8, dtype=np.float64).reshape(8, 1, 1, 1) + 100 * worker.transport.rank
        worker.solver.test_nets[0].layers["m"].reset(data, np.zeros(8))
        worker.solver.test_all()
        return scores(worker.heard)

    # Batches (0, 1), (2, 3), (4, 5) on rank 0, the same plus 100 on rank 1.
    param = solver_param(net, f"{TESTING} test_iter: 3")
    assert in_team(2, param, act) == [[(0, 0, 0.0, 2.5 + 50)]] * 2


def test_parts_of_the_workers_own(tmp_path):
    """Records dealt round-robin into parts, as partition_data does: scores are those over the next multiple of P."""
    pixels = np.random.RandomState(2).randint(0, 256, (26, 2, 6, 6)).astype(np.uint8)
    records = [datum(p, i % 5) for i, p in enumerate(pixels)]
    for rank in range(2):
        write_lmdb(tmp_path / f"db_{rank}", records[rank::2])
    by_rank = in_team(2, solver_param(picture_net(str(tmp_path / "db"), 2), f"{TESTING} test_iter: 3"), after_tests)
    assert by_rank[0][0] == by_rank[1][0]
    whole = write_lmdb(tmp_path / "whole", records)
    # Rounds of two batches of 3, of which each worker has every second sample: one batch of 6, twice.
    solver, heard = built(solver_param(picture_net(whole, 2, test_batch=6), f"{TESTING} test_iter: 2"))
    for _ in range(2):
        solver.test_all()
    torch.testing.assert_close(torch.tensor(by_rank[0][0]), torch.tensor(scores(heard)), rtol=1e-12, atol=0)
    assert [state["positions"] for state in by_rank[0][1]] == [state["positions"] for state in by_rank[1][1]]


# -- interruption, and what cannot be averaged ------------------------------------------------------------------------
def test_a_stop_asked_of_one_worker_ends_the_test_on_all(pictures):
    param = solver_param(picture_net(pictures, 2), "test_interval: 5 test_iter: 30")

    def act(worker):
        asked = iter([Action.NONE, Action.NONE, Action.STOP if worker.transport.rank == 1 else Action.NONE])
        worker.solver.action = lambda: next(asked, Action.NONE)
        worker.solver.step(3)
        return worker.solver.iter, worker.heard.of(events.TestInterrupted), net_state(worker.solver.test_nets[0])

    by_rank = in_team(3, param, act, options=PROMPT)
    assert [found[:2] for found in by_rank] == [(0, [events.TestInterrupted(0, 0)])] * 3
    # Asked before the third round, agreed upon before the fourth: three rounds of three batches of 3 samples.
    assert [found[2]["positions"] for found in by_rank] == [{"data": {"sample": 27}}] * 3


def test_outputs_of_different_shapes_on_different_workers(listing):
    param = solver_param(net_text(listing), "test_interval: 5 test_iter: 2")

    def work(transport):
        solver, _ = built(param)
        deal = WorkerDeal(solver.net, 2, Way.WHOLE, Roundtable(transport))
        deal.means(Sums(torch.zeros(()), {"loss": torch.zeros(1 + transport.rank)}))

    with pytest.raises(SolverError, match="output 'loss' of the test net had 1 and 2 values on different workers"):
        run_workers(2, work)
