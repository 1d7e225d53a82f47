"""BatchNorm over several workers: statistics averaged for tests and snapshots, or those of the P-fold batch."""

from __future__ import annotations

import pytest
import torch

from poseidon.net import Net
from poseidon.net.layers.synced_norm import SyncedNorm
from poseidon.plan import Scheme
from poseidon.run.distribute import DistributeOptions
from poseidon.run.roundtable import Roundtable
from poseidon.solver import events
from poseidon.transport.inproc import run_workers
from tests.run.jobs import assert_alike, assert_close, built, in_team, parameters, picture_net, solver_param

NORM = 'layer { name: "bn" type: "BatchNorm" bottom: "h" top: "h" batch_norm_param { moving_average_fraction: 0.9 } }'
SCALED = NORM + 'layer { name: "scale" type: "Scale" bottom: "h" top: "h" scale_param { bias_term: true } }'
SYNCED = DistributeOptions(sync_bn=True, agree_s=0)


def statistics(solver):
    return [blob.detach().clone() for blob in solver.net.params["bn"]]


# -- each worker's own ------------------------------------------------------------------------------------------------
def test_own_statistics_are_averaged_before_a_test_and_not_before(pictures):
    param = solver_param(picture_net(pictures, 3, middle=SCALED), "test_interval: 4 test_iter: 1")

    def act(worker):
        worker.solver.step(4)
        own = statistics(worker.solver)
        worker.solver.test_all()
        return own, statistics(worker.solver)

    by_rank = in_team(3, param, act)
    own, averaged = ([found[i] for found in by_rank] for i in range(2))
    assert not torch.equal(own[0][0], own[1][0])
    assert_alike(averaged)
    for index in range(3):
        expected = sum(worker[index] for worker in own) / 3
        torch.testing.assert_close(averaged[0][index], expected, rtol=1e-14, atol=0)


def test_own_statistics_normalise_in_training(pictures):
    """The gradient of one step is the mean of those that P separate workers compute on their own batches."""
    net = picture_net(pictures, 3, middle=SCALED)
    param = solver_param(net, "momentum: 0 weight_decay: 0 base_lr: 1")

    def act(worker):
        before = parameters(worker.solver)
        worker.solver.step(1)
        return [a - b for a, b in zip(before, parameters(worker.solver), strict=True)]

    moved = in_team(2, param, act)[0]
    grads = []
    for rank in range(2):
        solver, _ = built(param)
        solver.net.layers["data"].shard(rank, 2)
        solver.net.draws.first, solver.net.draws.stride = rank, 2
        solver.run(backward=True)
        grads.append([entry.value.grad for entry in solver.net.learnable])
    learned = [i for i, entry in enumerate(solver.net.learnable) if entry.value.requires_grad]
    for i in learned:
        torch.testing.assert_close(moved[i], (grads[0][i] + grads[1][i]) / 2, rtol=1e-9, atol=1e-12)


def test_statistics_that_are_given_are_left_alone(pictures):
    fixed = NORM.replace("0.9", "0.9 use_global_stats: true")
    param = solver_param(picture_net(pictures, 3, middle=fixed), "test_interval: 4 test_iter: 1")

    def act(worker):
        for blob, value in zip(worker.solver.net.params["bn"], (0.3, 0.7, 1.1), strict=True):
            blob.data.fill_(value)
        worker.solver.step(4)
        worker.solver.test_all()
        return statistics(worker.solver)

    for found in in_team(2, param, act):
        assert [set(blob.tolist()) for blob in found] == [{0.3}, {0.7}, {1.1}]


# -- those of the P-fold batch ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("middle", [NORM, SCALED])
@pytest.mark.parametrize("text", ["", "iter_size: 2 clip_gradients: 0.5"])
def test_synchronised_training_is_that_of_one_worker(pictures, size, middle, text):
    text = f"display: 2 test_interval: 6 test_iter: 4 {text}"

    def act(worker):
        worker.solver.step(13)
        return parameters(worker.solver), [event.loss for event in worker.heard.of(events.IterationShown)]

    by_rank = in_team(size, solver_param(picture_net(pictures, 2, middle=middle), text), act, options=SYNCED)
    assert_alike([values for values, _ in by_rank])  # the statistics too
    solver, heard = built(solver_param(picture_net(pictures, 2 * size, middle=middle), text))
    solver.step(13)
    assert_close(by_rank[0][0], parameters(solver))
    shown = torch.tensor([event.loss for event in heard.of(events.IterationShown)])
    torch.testing.assert_close(torch.tensor(by_rank[0][1]), shown, rtol=1e-9, atol=0)


def test_synchronised_beside_exchanges_in_every_scheme(pictures):
    """Backward passes wait for each other in the middle, while gradients of later layers are on their way."""
    param = solver_param(picture_net(pictures, 2, middle=SCALED))
    solver, _ = built(solver_param(picture_net(pictures, 6, middle=SCALED)))
    solver.step(10)
    for scheme in (Scheme.RING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER):
        by_rank = in_team(
            3, param, lambda w: (w.solver.step(10), parameters(w.solver))[1], options=SYNCED, scheme=scheme
        )
        assert_alike(by_rank)
        assert_close(by_rank[0], parameters(solver))


@pytest.mark.parametrize("shape", [(1, 2), (3,), (2, 3, 4), (1, 2, 1, 1)])
def test_odd_shapes(shape):
    """One value per channel and worker; one axis; an axis more."""
    dims = " ".join(f"dim: {extent}" for extent in shape)
    text = f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {dims} }} }} }}' + NORM.replace(
        '"h"', '"x"', 1
    )
    inputs = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def work(transport):
        net = Net.from_text(text, phase="TRAIN", seed=1, dtype=torch.float64)
        net.layers["bn"].over_workers(Roundtable(transport).gather)
        top = net(x=inputs[transport.rank])["h"]
        return top, [blob.clone() for blob in net.params["bn"]]

    by_rank = run_workers(2, work)
    whole = Net.from_text(text, phase="TRAIN", seed=1, dtype=torch.float64)
    expected = whole(x=torch.cat(list(inputs)))["h"]
    torch.testing.assert_close(torch.cat([top for top, _ in by_rank]), expected, rtol=1e-10, atol=1e-12)
    for _, blobs in by_rank:
        for blob, other in zip(blobs, whole.params["bn"], strict=True):
            torch.testing.assert_close(blob, other.detach(), rtol=1e-10, atol=1e-12)


def test_the_derivative_of_a_team_of_one():
    x = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)

    def normal(x):
        return SyncedNorm.apply(x, 1e-5, lambda row: row.unsqueeze(0))[0]

    torch.autograd.gradcheck(normal, (x,))
    expected = torch.nn.functional.batch_norm(x, None, None, training=True)
    torch.testing.assert_close(normal(x), expected, rtol=1e-12, atol=1e-14)


def test_half_precision_keeps_its_statistics_wide():
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0)) * 3 + 100
    normal, mean, variance = SyncedNorm.apply(x.bfloat16(), 1e-5, lambda row: row.unsqueeze(0))
    assert (normal.dtype, mean.dtype, variance.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    torch.testing.assert_close(mean, x.bfloat16().float().mean((0, 2)))
