"""--data-in-memory: workers that keep the data in their memory train as one worker that keeps all of it."""

from __future__ import annotations

import pytest

from poseidon.errors import UsageError
from poseidon.run.distribute import DistributeOptions
from tests.run.jobs import Worker, assert_alike, assert_close, in_team, parameters, picture_net, solver_param

KEPT = DistributeOptions(agree_s=0, data_in_memory=True)


def trained(size: int, net: str, options: DistributeOptions = KEPT) -> list:
    def act(worker: Worker) -> list:
        worker.solver.step(15)  # 26 pictures: more than three epochs
        return parameters(worker.solver)

    return in_team(size, solver_param(net), act, options=options)


@pytest.mark.parametrize("size", [2, 3])
def test_several_workers_train_as_one(pictures, size):
    by_rank = trained(size, picture_net(pictures, 2))
    assert_alike(by_rank)
    (alone,) = trained(1, picture_net(pictures, 2 * size))
    assert_close(by_rank[0], alone)
    in_order = trained(size, picture_net(pictures, 2), DistributeOptions(agree_s=0))
    assert any((a != b).any() for a, b in zip(by_rank[0], in_order[0], strict=True))  # shuffled


def test_a_net_without_records_is_refused():
    net = """layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } } }
             layer { name: "fc" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }
             layer { name: "t" type: "DummyData" top: "t" dummy_data_param { shape { dim: 2 dim: 2 } } }
             layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }"""
    with pytest.raises(UsageError, match="--data-in-memory keeps the records of Data and ImageData layers"):
        trained(2, net)
