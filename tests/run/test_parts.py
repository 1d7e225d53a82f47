"""Batches dealt out in unequal parts: the same trajectory as one worker with the whole batch, whatever the parts, and
every record once per epoch."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch

from poseidon.comm.factors import FactorExchange
from poseidon.errors import UsageError
from poseidon.plan import Cluster, PlanRequest, Scheme, make_plan
from poseidon.run.distribute import DistributeOptions, distribute
from poseidon.run.layer_times import estimated_times
from poseidon.run.profile import profile_net
from poseidon.solver import events
from poseidon.transport.inproc import run_workers
from poseidon.transport.levels import share_nodes
from tests.data.make import datum, write_lmdb
from tests.run.jobs import (
    Worker,
    assert_alike,
    assert_close,
    built,
    in_team,
    parameters,
    picture_net,
    solver_param,
)
from tests.solver.small import net_text

BALANCED = DistributeOptions(agree_s=0, balance=True)
BATCH = 4
# After so many iterations: the parts of three workers from then on.
DEALS = {0: (1, 8, 3), 3: (4, 4, 4), 5: (9, 1, 2), 8: (2, 3, 7)}
SCHEMES = (None, Scheme.RING, Scheme.DOUBLING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER, Scheme.ROWS)


def step_dealt(solver, distribution, num_iterations):
    for _ in range(num_iterations):
        if solver.iter in DEALS:
            distribution.deal(DEALS[solver.iter])
        solver.step(1)


def train_dealt(param, num_iterations=12, *, options=BALANCED, **further):
    def act(worker: Worker):
        step_dealt(worker.solver, worker.distribution, num_iterations)
        return parameters(worker.solver)

    return in_team(3, param, act, options=options, **further)


def alone(param, num_iterations=12):
    solver, _ = built(param)
    solver.step(num_iterations)
    return parameters(solver)


# -- the whole batch's result -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("", ""),
        ("iter_size: 2 clip_gradients: 0.3", "loss_param { ignore_label: 4 normalization: VALID }"),
        ('type: "Adam" momentum: 0.9', "loss_param { ignore_label: 4 normalization: NONE } loss_weight: 0.1"),
        ('type: "Nesterov"', "loss_param { normalization: BATCH_SIZE }"),
    ],
)
def test_databases_crops_dropout_and_ignored_labels(pictures, scheme, text, loss):
    together = train_dealt(solver_param(picture_net(pictures, BATCH, loss=loss), text), scheme=scheme)
    assert_alike(together)
    assert_close(together[0], alone(solver_param(picture_net(pictures, 3 * BATCH, loss=loss), text)))


@pytest.mark.parametrize("scheme", [Scheme.SERVER, Scheme.FACTOR_SERVER], ids=str)
@pytest.mark.parametrize("consistency", ["ssp-push", "ssp", "ssp-managed"])
def test_tables_with_staleness_0(pictures, scheme, consistency):
    loss = "loss_param { ignore_label: 4 normalization: VALID }"
    options = DistributeOptions(agree_s=0, balance=True, staleness=0, consistency=consistency)
    together = train_dealt(solver_param(picture_net(pictures, BATCH, loss=loss)), options=options, scheme=scheme)
    assert_alike(together)
    assert_close(together[0], alone(solver_param(picture_net(pictures, 3 * BATCH, loss=loss))))


def test_shuffled_rows_with_files_that_end_inside_of_batches(listing):
    together = train_dealt(solver_param(net_text(listing, batch=BATCH, shuffle=True, dropout=0.4)))
    assert_alike(together)
    whole = net_text(listing, batch=3 * BATCH, shuffle=True, dropout=0.4)
    assert_close(together[0], alone(solver_param(whole)))


DUMMY = """
    layer {{ name: "x" type: "DummyData" top: "x" dummy_data_param {{ shape {{ dim: {0} dim: 3 }}
             data_filler {{ type: "gaussian" std: 1 }} }} }}
    layer {{ name: "y" type: "DummyData" top: "y" dummy_data_param {{ shape {{ dim: {0} dim: 2 }}
             data_filler {{ type: "constant" value: 1 }} }} }}
    layer {{ name: "fc" type: "InnerProduct" bottom: "x" top: "z" inner_product_param {{ num_output: 2
             weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "y" top: "loss" }}
"""


def test_dummy_data_is_dealt_out_too():
    together = train_dealt(solver_param(DUMMY.format(BATCH)))
    assert_close(together[0], alone(solver_param(DUMMY.format(3 * BATCH))))


def test_synchronised_statistics_are_those_of_the_whole_batch(pictures):
    norm = """layer { name: "bn" type: "BatchNorm" bottom: "h" top: "h" }
              layer { name: "scale" type: "Scale" bottom: "h" top: "h" scale_param { bias_term: true } }"""
    options = DistributeOptions(agree_s=0, balance=True, sync_bn=True)
    together = train_dealt(solver_param(picture_net(pictures, BATCH, middle=norm)), options=options)
    assert_alike(together)
    assert_close(together[0], alone(solver_param(picture_net(pictures, 3 * BATCH, middle=norm))), rtol=1e-7)


def test_records_kept_in_memory(pictures):
    options = DistributeOptions(agree_s=0, balance=True, data_in_memory=True)
    together = train_dealt(solver_param(picture_net(pictures, BATCH)), options=options)
    kept = DistributeOptions(agree_s=0, data_in_memory=True)

    def act(worker):
        worker.solver.step(12)
        return parameters(worker.solver)

    (whole,) = in_team(1, solver_param(picture_net(pictures, 3 * BATCH)), act, options=kept)
    assert_close(together[0], whole)


def test_positions_rows_and_sharers_of_a_weight(pictures):
    """Factors of several rows per sample, from two layers that share a weight: K is no multiple of the parts."""
    further = """
        layer { name: "a" type: "InnerProduct" bottom: "data" top: "a" param { name: "w" } param { name: "b" }
                inner_product_param { num_output: 4 axis: 3 weight_filler { type: "xavier" } } }
        layer { name: "c" type: "InnerProduct" bottom: "a" top: "c" param { name: "w" } param { name: "b" }
                inner_product_param { num_output: 4 axis: 3 weight_filler { type: "xavier" } } }
        layer { name: "conv2" type: "Convolution" bottom: "c" top: "h2"
                convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
        layer { name: "y2" type: "InnerProduct" bottom: "h2" top: "y2"
                inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
        layer { name: "loss2" type: "SoftmaxWithLoss" bottom: "y2" bottom: "label" top: "loss2" }
    """
    for scheme in (Scheme.FACTORS, Scheme.FACTOR_SERVER):
        together = train_dealt(solver_param(picture_net(pictures, BATCH, further=further)), scheme=scheme)
        assert_alike(together)
        assert_close(together[0], alone(solver_param(picture_net(pictures, 3 * BATCH, further=further))))


def plan_on(solver, nodes, request):
    profile = profile_net(solver.net, estimated_times(solver.net, 1e9), iter_size=1, needs_all_gradients=False)
    return make_plan(profile, Cluster(nodes, bandwidth_bps=1e9), request)


@pytest.mark.parametrize("scheme", SCHEMES[1:6], ids=str)
@pytest.mark.parametrize("cut", [48.0, 1e9])
def test_on_two_nodes_in_small_pieces(pictures, scheme, cut):
    param = solver_param(picture_net(pictures, BATCH))

    def work(transport):
        transport = share_nodes(transport, [0, 0, 1]).transport
        solver, _ = built(param)
        plan = plan_on(solver, (2, 1), PlanRequest(scheme=scheme, fuse_bytes=(0.0,), chunk_bytes=(cut,)))
        with distribute(solver, transport, plan, BALANCED) as distribution:
            step_dealt(solver, distribution, 12)
            return parameters(solver)

    together = run_workers(3, work, timeout_s=60)
    assert_alike(together)
    assert_close(together[0], alone(solver_param(picture_net(pictures, 3 * BATCH))))


@pytest.mark.parametrize("scheme", [Scheme.SERVER, Scheme.TREE])
def test_by_notified_puts(pictures, scheme):
    param = solver_param(picture_net(pictures, BATCH))

    def work(transport):
        solver, _ = built(param)
        plan = plan_on(solver, (1, 1, 1), PlanRequest(pattern="gpi", scheme=scheme))
        with distribute(solver, transport, plan, BALANCED) as distribution:
            step_dealt(solver, distribution, 12)
            return parameters(solver)

    together = run_workers(3, work, timeout_s=60)
    assert_close(together[0], alone(solver_param(picture_net(pictures, 3 * BATCH))))


def test_shown_losses_and_outputs_are_those_of_the_whole_batch(pictures):
    text = "display: 3 average_loss: 4 iter_size: 2 max_iter: 9 "
    further = 'layer { name: "mean" type: "Reduction" bottom: "y" top: "mean" reduction_param { operation: MEAN } }'

    def net(batch):
        return picture_net(pictures, batch, loss="loss_param { ignore_label: 4 }", further=further)

    def shown_by(heard):
        return [
            (event.iteration, event.loss, *(output.value for output in event.outputs))
            for event in heard.of(events.IterationShown)
        ]

    def act(worker):
        worker.distribution.deal((1, 8, 3))
        worker.solver.solve()
        return shown_by(worker.heard)

    for settings in (text, text + " debug_info: true"):
        by_rank = in_team(3, solver_param(net(BATCH), settings), act, options=BALANCED)
        solver, heard = built(solver_param(net(3 * BATCH), text))
        solver.solve()
        assert [entry[0] for entry in shown_by(heard)] == [0, 3, 6]
        torch.testing.assert_close(torch.tensor(by_rank[0]), torch.tensor(shown_by(heard)), rtol=1e-9, atol=0)


# -- who has what -----------------------------------------------------------------------------------------------------
def test_every_record_is_read_once_per_epoch(tmp_path):
    """26 records with labels of their own; batches of 12 cross the ends of epochs."""
    pixels = torch.zeros(26, 2, 6, 6, dtype=torch.uint8).numpy()
    source = write_lmdb(tmp_path / "numbered", [datum(p, label) for label, p in enumerate(pixels)])

    def act(worker):
        read = []
        data = worker.solver.net.layers["data"]
        forward = data.forward

        def watched():
            pixels, labels = forward()
            read.append([int(label) for label in labels])
            return pixels, labels % 5

        data.forward = watched
        step_dealt(worker.solver, worker.distribution, 13)  # 6 epochs
        return read

    by_rank = in_team(3, solver_param(picture_net(source, BATCH)), act, options=BALANCED)
    batches = [sorted(label for read in together for label in read) for together in zip(*by_rank, strict=True)]
    whole = [[(12 * k + i) % 26 for i in range(12)] for k in range(13)]
    assert batches == [sorted(batch) for batch in whole]
    assert Counter(label for batch in batches for label in batch) == dict.fromkeys(range(26), 6)
    assert [len(read) for read in by_rank[1]] == [8] * 3 + [4] * 2 + [1] * 3 + [3] * 5


def test_factors_are_as_many_as_samples(pictures):
    """What travels does not grow because parts are unequal."""

    def act(worker):
        worker.solver.step(2)
        worker.solver.updates.drain()
        before = worker.transport.bytes_sent
        worker.solver.step(1)
        worker.solver.updates.drain()
        equal = worker.transport.bytes_sent - before
        worker.distribution.deal((1, 8, 3))
        rows = [e.rows_by_rank for e in worker.distribution.updates.exchanges if isinstance(e, FactorExchange)]
        before = worker.transport.bytes_sent
        worker.solver.step(1)
        worker.solver.updates.drain()
        return equal, worker.transport.bytes_sent - before, rows

    param = solver_param(picture_net(pictures, BATCH))
    by_rank = in_team(3, param, act, options=BALANCED, scheme=Scheme.FACTORS)
    assert all(rows == [[1, 8, 3]] for _, _, rows in by_rank)
    assert sum(equal for equal, _, _ in by_rank) == sum(unequal for _, unequal, _ in by_rank)


def test_a_restored_snapshot_goes_on_with_equal_parts(pictures, tmp_path):
    param = solver_param(picture_net(pictures, BATCH), f'snapshot_prefix: "{tmp_path / "s"}"')

    def act(worker):
        solver = worker.solver
        step_dealt(solver, worker.distribution, 6)
        solver.snapshot()
        solver.step(2)
        straight = parameters(solver)
        solver.restore(tmp_path / "s_iter_6.solverstate")
        solver.step(2)
        return straight, parameters(solver), solver.net.graph.shapes["data"][0], solver.net.graph.weight

    for straight, resumed, num_samples, weight in in_team(3, param, act, options=BALANCED, scheme=Scheme.FACTORS):
        assert_close(resumed, straight)
        assert (num_samples, weight) == (BATCH, 1.0)


def test_afterwards_the_net_is_whole_again(pictures):
    def work(transport):
        solver, _ = built(solver_param(picture_net(pictures, BATCH)))
        with distribute(solver, transport, plan_on(solver, (1, 1), PlanRequest()), BALANCED) as distribution:
            distribution.deal((1, 7))
            solver.step(2)
        outputs = solver.net(keep=["data"])
        return len(outputs["data"]), solver.net.graph.weight, solver.callbacks

    assert run_workers(2, work) == [(BATCH, 1.0, [])] * 2


# -- refusals ---------------------------------------------------------------------------------------------------------
def refused(net, text="", **options):
    with pytest.raises(UsageError) as caught:
        in_team(2, solver_param(net, text), lambda worker: None, options=BALANCED, **options)
    return str(caught.value)


def test_a_state_carried_from_batch_to_batch_is_refused():
    net = """
        layer { name: "x" type: "DummyData" top: "x" top: "cont" dummy_data_param {
                shape { dim: 4 dim: 2 dim: 3 } shape { dim: 4 dim: 2 } } }
        layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "h" recurrent_param { num_output: 2 } }
        layer { name: "loss" type: "EuclideanLoss" bottom: "h" bottom: "h" top: "loss" }"""
    assert "layer 'lstm' (LSTM) carries a state from batch to batch" in refused(net)


def test_data_that_each_worker_is_fed_is_refused():
    net = """
        layer { name: "fed" type: "MemoryData" top: "x" top: "y"
                memory_data_param { batch_size: 4 channels: 1 height: 1 width: 1 } }
        layer { name: "flat" type: "Flatten" bottom: "y" top: "t" }
        layer { name: "fc" type: "InnerProduct" bottom: "x" top: "z" inner_product_param { num_output: 1 } }
        layer { name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "t" top: "loss" }"""
    assert "layer 'fed' (MemoryData) is fed by each worker itself" in refused(net)


def test_parts_of_the_data_of_ones_own_are_refused(tmp_path, pictures):
    for rank in range(2):
        (tmp_path / f"part_{rank}").symlink_to(pictures)
    assert "reads a part of the data that only this worker has" in refused(picture_net(str(tmp_path / "part"), BATCH))


def test_shapes_that_do_not_follow_the_batch_are_refused(pictures):
    fixed = """
        layer { name: "fixed" type: "Reshape" bottom: "data" top: "f" reshape_param { shape { dim: 4 dim: 32 } } }
        layer { name: "hush" type: "Silence" bottom: "f" }"""
    assert "this net takes batches of 4 only" in refused(picture_net(pictures, BATCH, further=fixed))
    mixed = """
        layer { name: "mixed" type: "Reshape" bottom: "data" top: "m" reshape_param { shape { dim: 2 dim: -1 } } }
        layer { name: "hush" type: "Silence" bottom: "m" }"""
    text = refused(picture_net(pictures, BATCH, further=mixed))
    assert re.search(r"blob 'm' does not follow the number of samples along its first axis: .* for 4, .* for 5", text)


def test_losses_that_are_sums_are_refused(pictures):
    total = """layer { name: "total" type: "Reduction" bottom: "y" top: "total" loss_weight: 1
               reduction_param { operation: SUMSQ } }"""
    assert "layer 'total' (Reduction) is a loss that may not be a mean" in refused(
        picture_net(pictures, BATCH, further=total)
    )


def test_shown_outputs_with_a_value_per_sample_are_refused(pictures):
    values = 'layer { name: "soft" type: "Softmax" bottom: "y" top: "soft" }'
    net = picture_net(pictures, BATCH, further=values)
    assert "output 'soft' of the train net has a value per sample" in refused(net, "display: 5")
    in_team(2, solver_param(net), lambda worker: worker.solver.step(1), options=BALANCED)  # nobody looks


def test_batches_of_one_and_of_different_sizes_are_refused(pictures):
    assert "with 1 sample per worker there is nothing to deal" in refused(picture_net(pictures, 1))
    further = """layer { name: "more" type: "DummyData" top: "more" dummy_data_param { shape { dim: 3 } } }
                 layer { name: "hush" type: "Silence" bottom: "more" }"""
    text = refused(picture_net(pictures, BATCH, further=further))
    assert "one number of samples for all data layers, got 4 of 'data', 3 of 'more'" in text


def test_sums_over_workers_are_refused():
    with pytest.raises(UsageError, match="--balance with --reduce sum"):
        DistributeOptions(balance=True, averages=False)


def test_factors_by_notified_puts_are_refused(pictures):
    def work(transport):
        solver, _ = built(solver_param(picture_net(pictures, BATCH)))
        plan = plan_on(solver, (1, 1), PlanRequest(pattern="gpi", scheme=Scheme.FACTORS))
        distribute(solver, transport, plan, BALANCED)

    with pytest.raises(UsageError, match="--balance with --pattern gpi: memory for factors is laid out once"):
        run_workers(2, work)
