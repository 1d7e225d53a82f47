"""Replicas that drift apart are found, and named by unit and ranks."""

from __future__ import annotations

import re

import pytest
import torch

from poseidon.errors import UsageError, WorkersDiffer
from poseidon.plan import Scheme
from poseidon.run.distribute import DistributeOptions
from poseidon.run.replicas import checksum, ranks_text
from poseidon.solver import events
from tests.run.jobs import in_team, picture_net, solver_param
from tests.solver.small import net_text

NORM = 'layer { name: "bn" type: "BatchNorm" bottom: "h" top: "h" }'


def test_a_worker_that_drifts_is_named_on_all(listing):
    """One bit of fc2's weight, on one worker, after the fourth iteration; looked at after every second."""
    reached = []

    def act(worker):
        def nudge(event):
            if isinstance(event, events.IterationDone) and event.iteration == 3 and worker.transport.rank == 1:
                worker.solver.updates.drain()
                weight = worker.solver.net.params["fc2"][0].data
                weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0, dtype=weight.dtype))

        worker.solver.listeners.insert(0, nudge)
        with pytest.raises(WorkersDiffer) as caught:
            worker.solver.step(9)
        reached.append(worker.solver.iter)
        return str(caught.value), caught.value.ranks

    options = DistributeOptions(verify_replicas=2)
    found = in_team(3, solver_param(net_text(listing, batch=2)), act, options=options, scheme=Scheme.FACTORS)
    assert len(set(found)) == 1
    text, ranks = found[0]
    assert re.search(
        r"after iteration 3 the parameters of unit 0 \(fc1/0, fc1/1, fc2/0, fc2/1\) are not the same", text
    )
    assert "ranks 0 and 2, which differ from rank 1" in text
    assert ranks == (1,)
    assert reached == [4, 4, 4]


@pytest.mark.parametrize("sync_bn", [False, True])
def test_statistics_of_each_workers_own_are_no_drift(pictures, sync_bn):
    options = DistributeOptions(verify_replicas=1, sync_bn=sync_bn)
    param = solver_param(picture_net(pictures, 2, middle=NORM))
    assert in_team(3, param, lambda worker: (worker.solver.step(5), worker.solver.iter)[1], options=options) == [5] * 3


def test_synchronised_statistics_are_compared(pictures):
    options = DistributeOptions(verify_replicas=3, sync_bn=True)

    def act(worker):
        worker.solver.net.params["bn"][0].data[0] += worker.transport.rank
        worker.solver.step(3)

    with pytest.raises(WorkersDiffer, match=r"after iteration 2 .*bn/0, bn/1, bn/2"):
        in_team(2, solver_param(picture_net(pictures, 2, middle=NORM)), act, options=options)


def test_not_a_number_is_like_itself(listing):
    """Bits are compared, not values: workers that all went astray are still alike."""

    def act(worker):
        worker.solver.net.params["fc1"][0].data.fill_(float("nan"))
        worker.solver.step(2)
        return worker.solver.iter

    options = DistributeOptions(verify_replicas=1)
    assert in_team(2, solver_param(net_text(listing, batch=2)), act, options=options) == [2, 2]


def test_checksums_tell_order_sign_and_type():
    values = torch.tensor([1.0, 2.0, 0.0])
    others = [values.flip(0), values * torch.tensor([1, 1, -0.0]), values.double(), values[:2]]
    assert checksum([values]) == checksum([values.clone()]) == checksum([values[:1], values[1:]])
    assert len({checksum([values]), *(checksum([other]) for other in others)}) == 5
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert checksum([image]) == checksum([image.permute(0, 2, 3, 1)])


def test_ranks_for_people():
    assert [ranks_text(ranks) for ranks in ((2,), (0, 1), (0, 1, 3))] == ["rank 2", "ranks 0 and 1", "ranks 0, 1 and 3"]


def test_the_interval_is_checked():
    with pytest.raises(UsageError, match=r"every 1 or more iterations, or never \(0\), got -1"):
        DistributeOptions(verify_replicas=-1)
