"""P workers are one worker with the P-fold batch: the same parameters, losses and outputs, whatever feeds the net."""

from __future__ import annotations

import re

import pytest
import torch

from poseidon.errors import PlanError, UsageError
from poseidon.plan import Scheme
from poseidon.run.distribute import DistributeOptions, distribute
from poseidon.solver import events
from poseidon.transport.inproc import run_workers
from tests.run.jobs import (
    PROMPT,
    assert_alike,
    assert_close,
    built,
    in_team,
    parameters,
    picture_net,
    plan_for,
    solver_param,
    trained,
)
from tests.solver.small import net_text

SIZES = pytest.mark.parametrize("size", [2, 3])
IGNORING = "loss_param { ignore_label: 4 }"


def alone(param, num_iterations):
    solver, _ = built(param)
    solver.step(num_iterations)
    return parameters(solver)


@SIZES
@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("", ""),
        ("", IGNORING),
        ("iter_size: 2 clip_gradients: 0.3", "loss_param { ignore_label: 4 normalization: VALID }"),
        ('type: "Adam" momentum: 0.9', "loss_param { ignore_label: 4 normalization: NONE } loss_weight: 0.1"),
        ('type: "Nesterov"', "loss_param { normalization: BATCH_SIZE }"),
    ],
)
def test_databases_crops_dropout_and_ignored_labels(pictures, size, text, loss):
    """An epoch of 26 records ends inside of batches; the pictures to be ignored are dealt out unevenly."""
    together = trained(size, solver_param(picture_net(pictures, 4, loss=loss), text), 12)
    assert_alike(together)
    assert_close(together[0], alone(solver_param(picture_net(pictures, 4 * size, loss=loss), text), 12))


@SIZES
@pytest.mark.parametrize("scheme", [None, Scheme.RING, Scheme.SERVER])
def test_shuffled_rows_and_dropout(listing, size, scheme):
    param = solver_param(net_text(listing, batch=3, shuffle=True, dropout=0.4))
    together = trained(size, param, 12, scheme=scheme)
    assert_alike(together)
    assert_close(together[0], alone(solver_param(net_text(listing, batch=3 * size, shuffle=True, dropout=0.4)), 12))


DUMMY = """
    layer {{ name: "x" type: "DummyData" top: "x" dummy_data_param {{ shape {{ dim: {0} dim: 3 }}
             data_filler {{ type: "gaussian" std: 1 }} }} }}
    layer {{ name: "y" type: "DummyData" top: "y" dummy_data_param {{ shape {{ dim: {0} dim: 2 }}
             data_filler {{ type: "uniform" min: -1 }} }} }}
    layer {{ name: "fc" type: "InnerProduct" bottom: "x" top: "z" inner_product_param {{ num_output: 2
             weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "y" top: "loss" }}
"""


def test_dummy_data_is_that_of_the_whole_batch():
    together = trained(3, solver_param(DUMMY.format(2)), 10)
    assert_close(together[0], alone(solver_param(DUMMY.format(6)), 10))


FED = """
    layer {{ name: "fed" type: "MemoryData" top: "x" top: "y"
             memory_data_param {{ batch_size: {0} channels: 3 height: 1 width: 1 }} }}
    layer {{ name: "drop" type: "Dropout" bottom: "x" top: "x" }}
    layer {{ name: "fc" type: "InnerProduct" bottom: "x" top: "z" inner_product_param {{ num_output: 1
             weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "flat" type: "Flatten" bottom: "y" top: "t" }}
    layer {{ name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "t" top: "loss" }}
"""


def test_each_worker_is_fed_its_own_memory_data():
    """Whoever deals the samples out in turn gets one worker with all of them."""
    random = torch.Generator().manual_seed(1)
    data, labels = torch.randn(12, 3, 1, 1, generator=random), torch.randn(12, generator=random)

    def act(worker):
        worker.solver.net.layers["fed"].reset(data[worker.transport.rank :: 3], labels[worker.transport.rank :: 3])
        worker.solver.step(10)
        return parameters(worker.solver)

    together = in_team(3, solver_param(FED.format(2)), act)
    solver, _ = built(solver_param(FED.format(6)))
    solver.net.layers["fed"].reset(data, labels)
    solver.step(10)
    assert_alike(together)
    assert_close(together[0], parameters(solver))


def test_summed_gradients_are_a_loss_times_the_number_of_workers():
    """PMLS's rule: P workers move as one whose loss weighs P times as much."""
    options = DistributeOptions(averages=False)
    together = trained(3, solver_param(DUMMY.format(2)), 10, options=options)
    assert_alike(together)
    weighted = DUMMY.format(6).replace('top: "loss"', 'top: "loss" loss_weight: 3')
    assert_close(together[0], alone(solver_param(weighted), 10))


def test_without_a_seed_all_take_rank_0s(listing):
    """Every worker fills, shuffles and drops by a seed of its own until then."""
    param = solver_param(net_text(listing, batch=2, shuffle=True, dropout=0.4), "random_seed: -1")

    def act(worker):
        seeds = (worker.solver.seed, worker.solver.net.draws.seed)
        worker.solver.step(8)
        return seeds, parameters(worker.solver)

    outcomes = in_team(3, param, act)
    assert_alike([values for _, values in outcomes])
    assert len({seeds for seeds, _ in outcomes}) == 1
    (seed, _), found = outcomes[0]
    whole = net_text(listing, batch=6, shuffle=True, dropout=0.4)
    assert_close(found, alone(solver_param(whole, f"random_seed: {seed}"), 8))


# -- what is shown ----------------------------------------------------------------------------------------------------
@SIZES
def test_shown_losses_and_outputs_are_those_of_the_whole_batch(pictures, size):
    text = "display: 3 average_loss: 4 iter_size: 2 max_iter: 9 "
    further = 'layer { name: "mean" type: "Reduction" bottom: "y" top: "mean" reduction_param { operation: MEAN } }'

    def net(batch):
        return picture_net(pictures, batch, loss=IGNORING, further=further)

    def act(worker):
        worker.solver.solve()
        return shown_by(worker.heard)

    def shown_by(heard):
        numbers = [
            (event.iteration, event.loss, *(output.value for output in event.outputs))
            for event in heard.of(events.IterationShown)
        ]
        return numbers, [(event.iteration, event.loss) for event in heard.of(events.FinalLoss)]

    by_rank = in_team(size, solver_param(net(2), text), act)
    assert by_rank[1:] == by_rank[:-1]
    solver, heard = built(solver_param(net(2 * size), text))
    solver.solve()
    shown, final = shown_by(heard)
    assert [entry[0] for entry in shown] == [0, 3, 6]
    torch.testing.assert_close(torch.tensor(by_rank[0][0]), torch.tensor(shown), rtol=1e-9, atol=0)
    torch.testing.assert_close(torch.tensor(by_rank[0][1]), torch.tensor(final), rtol=1e-9, atol=0)


def test_only_shown_iterations_cost_an_exchange(listing):
    """What travels beside the gradients is counted: nothing but the vote on requests, where nothing is shown."""

    def sent(display):
        def act(worker):
            worker.solver.step(1)
            worker.solver.updates.drain()
            before = worker.transport.bytes_sent
            worker.solver.step(6)
            worker.solver.updates.drain()
            return worker.transport.bytes_sent - before

        return in_team(2, solver_param(net_text(listing, batch=2), f"display: {display}"), act)[0]

    assert sent(0) == sent(100)


# -- what is refused --------------------------------------------------------------------------------------------------
def test_a_plan_for_other_workers_is_refused(listing):
    param = solver_param(net_text(listing, batch=2))

    def work(transport):
        solver, _ = built(param)
        distribute(solver, transport, plan_for(solver, 3), PROMPT)

    with pytest.raises(PlanError, match="the plan is for 3 workers, there are 2: make a new plan"):
        run_workers(2, work)


def test_parameter_diffs_are_refused(listing, tmp_path):
    text = f'snapshot_diff: true snapshot_prefix: "{tmp_path / "s"}"'
    with pytest.raises(UsageError, match="keep no parameter diffs after an update; set snapshot_diff: false"):
        trained(2, solver_param(net_text(listing, batch=2), text), 1)


def test_layers_that_write_one_file_are_refused(listing, tmp_path):
    writer = f"""layer {{ name: "keep" type: "HDF5Output" bottom: "out" bottom: "y"
                 hdf5_output_param {{ file_name: "{tmp_path / "out.h5"}" }} }}"""
    # Built one after the other: the layer makes its file then.
    solvers = [built(solver_param(net_text(listing, batch=2) + writer))[0] for _ in range(2)]
    with pytest.raises(UsageError, match=re.escape("layer 'keep' (HDF5Output) writes to one file")):
        run_workers(2, lambda transport: distribute(solvers[transport.rank], transport, plan_for(solvers[0], 2)))


def test_one_worker_by_itself_is_a_team_too(listing):
    param = solver_param(
        net_text(listing, batch=4, shuffle=True, dropout=0.4), "display: 2 test_interval: 4 test_iter: 3"
    )
    (found,) = trained(1, param, 10)
    assert_close(found, alone(param, 10), rtol=0)


def test_the_time_to_act_is_checked():
    with pytest.raises(UsageError, match="within 0 or more seconds, got -2"):
        DistributeOptions(agree_s=-2)


# -- afterwards -------------------------------------------------------------------------------------------------------
def test_when_the_workers_have_parted(pictures):
    """The nets compute alone again; the solver says that it cannot go on."""
    norm = 'layer { name: "bn" type: "BatchNorm" bottom: "h" top: "h" }'
    param = solver_param(picture_net(pictures, 2, loss=IGNORING, middle=norm), "test_interval: 9 test_iter: 3")
    options = DistributeOptions(sync_bn=True)

    def work(transport):
        solver, heard = built(param)
        with distribute(solver, transport, plan_for(solver, 2), options) as distribution:
            solver.step(3)
        distribution.close()  # once more does no harm
        if transport.rank == 0:
            with pytest.raises(UsageError, match="workers have parted, so it cannot train any more"):
                solver.step(1)
            with pytest.raises(UsageError, match="cannot write a snapshot any more; do it before the distribution"):
                solver.snapshot()
            position = solver.net.layers["data"].position()["sample"]
            solver.net()
            solver.test_all()
            assert solver.net.layers["data"].position()["sample"] == position + 2
            assert [layer.position()["sample"] for net in solver.test_nets for layer in [net.layers["data"]]] == [2 * 9]
        return len(heard.of(events.TestDone))

    assert run_workers(2, work) == [2, 1]


def test_debugged_iterations_train_like_others(listing):
    """debug_info runs layer by layer; gradients are then final when the pass is over."""
    text = "display: 2 debug_info: true"
    for scheme in (Scheme.RING, Scheme.SERVER, Scheme.FACTORS):
        together = trained(2, solver_param(net_text(listing, batch=2), text), 6, scheme=scheme)
        assert_alike(together)
        assert_close(together[0], alone(solver_param(net_text(listing, batch=4)), 6))
