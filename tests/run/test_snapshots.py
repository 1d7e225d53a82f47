"""Snapshots of a team: one set of files, from which as many workers go on bit for bit, and any other number exactly."""

from __future__ import annotations

import json

import pytest
import torch

from poseidon.errors import SnapshotError, WorkersDiffer
from poseidon.plan import Scheme
from poseidon.run.distribute import DistributeOptions
from poseidon.run.worker_states import saved_plan
from poseidon.solver import Action, events
from poseidon.solver.sidecar import Sidecar, read_sidecar, write_sidecar
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
)
from tests.solver.small import net_text

NORM = """layer { name: "bn" type: "BatchNorm" bottom: "h" top: "h" }
          layer { name: "scale" type: "Scale" bottom: "h" top: "h" scale_param { bias_term: true } }"""


def results(worker):
    """Parameters, and everything that was shown."""
    shown = [(event.iteration, event.loss) for event in worker.heard.of(events.IterationShown)]
    tests = [(event.iteration, event.outputs) for event in worker.heard.of(events.TestDone)]
    return parameters(worker.solver), shown, tests


def whole_run(worker):
    worker.solver.solve()
    return results(worker)


def resumed_from(path):
    def act(worker):
        worker.solver.restore(path)
        worker.heard.all.clear()
        worker.solver.step(worker.solver.param.max_iter - worker.solver.iter)
        return results(worker)

    return act


@pytest.mark.parametrize(
    ("form", "scheme", "seed"),
    [
        ("BINARYPROTO", None, 3),
        ("HDF5", None, -1),
        ("BINARYPROTO", Scheme.SERVER, -1),
        ("HDF5", Scheme.SERVER, 3),
        ("BINARYPROTO", Scheme.RING, 3),
    ],
)
def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(pictures, tmp_path, form, scheme, seed):
    """The resumed workers are given another plan: the snapshot's is used."""
    text = f"""random_seed: {seed} type: "Adam" max_iter: 11 snapshot: 5 snapshot_prefix: "{tmp_path / "s"}"
               iter_size: 2 display: 2 average_loss: 3 test_interval: 3 test_iter: 4 snapshot_format: {form}"""
    param = solver_param(picture_net(pictures, 2, middle=NORM, loss="loss_param { ignore_label: 4 }"), text)
    ending = ".solverstate.h5" if form == "HDF5" else ".solverstate"
    uninterrupted = in_team(3, param, whole_run, scheme=scheme)
    other = Scheme.FACTORS if scheme is Scheme.RING else Scheme.RING
    resumed = in_team(3, param, resumed_from(tmp_path / f"s_iter_5{ending}"), scheme=other)
    for (values, shown, tests), (before, shown_before, tests_before) in zip(resumed, uninterrupted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(values, before, strict=True))
        assert shown == [entry for entry in shown_before if 5 <= entry[0] < 11]
        assert tests == [entry for entry in tests_before if entry[0] >= 5]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 2), (3, 1)])
@pytest.mark.parametrize("scheme", [None, Scheme.SERVER])
def test_another_number_of_workers_goes_on(listing, tmp_path, before, after, scheme):
    """6 samples per iteration, however many share them."""
    text = f'type: "Adam" average_loss: 4 display: 3 max_iter: 12 snapshot: 7 snapshot_prefix: "{tmp_path / "s"}"'

    def param(size):
        return solver_param(net_text(listing, batch=6 // size, shuffle=True, dropout=0.3), text)

    in_team(before, param(before), whole_run, scheme=scheme)
    resumed = in_team(after, param(after), resumed_from(tmp_path / "s_iter_7.solverstate"), scheme=scheme)
    solver, heard = built(solver_param(net_text(listing, batch=6, shuffle=True, dropout=0.3), text))
    solver.step(12)
    assert_alike([values for values, _, _ in resumed])
    assert_close(resumed[0][0], parameters(solver))
    shown = torch.tensor([event.loss for event in heard.of(events.IterationShown) if event.iteration >= 7])
    torch.testing.assert_close(torch.tensor([loss for _, loss in resumed[0][1]]), shown, rtol=1e-9, atol=0)


def test_a_solver_alone_goes_on_from_a_teams_snapshot_and_back(listing, tmp_path):
    """Without a team there is no trace of one; histories that lay at their owners are whole in the file."""
    text = f'max_iter: 9 snapshot: 3 snapshot_prefix: "{tmp_path / "s"}"'

    def param(batch):
        return solver_param(net_text(listing, batch=batch, shuffle=True), text)

    in_team(3, param(2), lambda worker: worker.solver.step(3), scheme=Scheme.SERVER)
    alone, _ = built(param(6))
    alone.restore(tmp_path / "s_iter_3.solverstate")
    alone.step(3)
    resumed = in_team(3, param(2), resumed_from(tmp_path / "s_iter_6.solverstate"), scheme=Scheme.SERVER)
    solver, _ = built(param(6))
    solver.step(9)
    assert_close(resumed[0][0], parameters(solver))


def test_averaged_statistics_are_in_the_file(pictures, tmp_path):
    text = f'snapshot: 4 snapshot_prefix: "{tmp_path / "s"}"'
    param = solver_param(picture_net(pictures, 2, middle=NORM), text)

    def act(worker):
        own = []
        worker.solver.listeners.append(lambda event: own.append(blobs()) if is_last(event) else None)

        def is_last(event):
            return isinstance(event, events.IterationDone) and event.iteration == 3

        def blobs():
            return [blob.detach().clone() for blob in worker.solver.net.params["bn"]]

        worker.solver.step(4)
        return own[0]

    own = in_team(2, param, act)
    solver, _ = built(param)
    solver.net.load(tmp_path / "s_iter_4.caffemodel")
    for index, blob in enumerate(solver.net.params["bn"]):
        mean = (own[0][index] + own[1][index]) / 2
        torch.testing.assert_close(blob.detach(), mean.float().double(), rtol=1e-6, atol=0)


def test_a_snapshot_between_test_batches(pictures, tmp_path):
    text = f'test_interval: 4 test_iter: 9 snapshot_prefix: "{tmp_path / "s"}"'

    def act(worker):
        asked = iter([Action.SNAPSHOT if worker.transport.rank == 1 else Action.NONE])
        worker.solver.action = lambda: next(asked, Action.NONE)
        worker.solver.step(2)
        return [(type(e).__name__, e.iteration) for e in worker.heard.of(events.SnapshotWritten)]

    assert in_team(2, solver_param(picture_net(pictures, 2), text), act) == [[("SnapshotWritten", 0)]] * 2
    state = json.loads((tmp_path / "s_iter_0.poseidon.json").read_text())["continuation"]["tests"][0]
    # Asked before the first round, agreed upon before the second: two batches of 3 are done.
    assert (state["positions"], state["clock"]) == ({"data": {"sample": 6}}, 2)


# -- plans ------------------------------------------------------------------------------------------------------------
def taken(listing, tmp_path, scheme=Scheme.SERVER, text=""):
    param = solver_param(net_text(listing, batch=2), f'snapshot: 3 snapshot_prefix: "{tmp_path / "s"}" {text}')
    in_team(2, param, lambda worker: worker.solver.step(3), scheme=scheme)
    return param, tmp_path / "s_iter_3.solverstate"


def test_the_plan_is_saved_and_used_again(listing, tmp_path):
    param, path = taken(listing, tmp_path)
    solver, _ = built(param)
    expected = plan_for(solver, 2, Scheme.SERVER)
    assert saved_plan(path, 2) == expected
    assert saved_plan(path, 3) is None

    def act(worker):
        worker.solver.restore(path)
        return worker.distribution.plan

    assert in_team(2, param, act, scheme=Scheme.RING) == [expected] * 2
    keep = DistributeOptions(reuse_plan=False)
    assert in_team(2, param, act, scheme=Scheme.RING, options=keep) == [plan_for(solver, 2, Scheme.RING)] * 2


def test_a_plan_that_fits_no_longer_is_left_alone(listing, tmp_path):
    """Gradients are clipped now, which the snapshot's plan knows nothing of."""
    param, path = taken(listing, tmp_path)
    param.clip_gradients = 0.1

    def act(worker):
        worker.solver.restore(path)
        worker.solver.step(2)
        return worker.distribution.plan.barrier

    assert in_team(2, param, act, scheme=Scheme.RING) == [True] * 2


# -- what goes wrong --------------------------------------------------------------------------------------------------
def test_workers_that_restore_different_snapshots_are_refused(listing, tmp_path):
    param, path = taken(listing, tmp_path)
    in_team(2, param, lambda worker: (worker.solver.step(4), worker.solver.snapshot()))
    paths = [path, tmp_path / "s_iter_4.solverstate"]
    with pytest.raises(WorkersDiffer, match=r"differ in the iteration: 3 on rank 0 \(host .*\); 4 on rank 1") as caught:
        in_team(2, param, lambda worker: worker.solver.restore(paths[worker.transport.rank]))
    assert caught.value.ranks == (1,)


def test_a_snapshot_that_only_some_can_read_ends_all(listing, tmp_path):
    param, path = taken(listing, tmp_path)
    paths = [path, tmp_path / "elsewhere_iter_3.solverstate"]
    with pytest.raises(SnapshotError, match=r"elsewhere_iter_3\.solverstate: no such file"):
        in_team(2, param, lambda worker: worker.solver.restore(paths[worker.transport.rank]))


def test_a_damaged_team_entry_is_named(listing, tmp_path):
    param, path = taken(listing, tmp_path)
    sidecar = read_sidecar(tmp_path / "s_iter_3.poseidon.json")
    broken = {**sidecar.continuation, "team": {"plan": "{}", "workers": [{}, {}]}}
    write_sidecar(Sidecar(3, sidecar.files, broken), tmp_path / "s_iter_3.poseidon.json")
    with pytest.raises(SnapshotError, match=r"its sidecar cannot be used: KeyError 'carried'"):
        in_team(2, param, lambda worker: worker.solver.restore(path))


# -- what recurrent layers carry --------------------------------------------------------------------------------------
CARRYING = """
    layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 3 dim: 2 dim: 3 }
            data_filler { type: "gaussian" std: 1 } } }
    layer { name: "cont" type: "DummyData" top: "cont" dummy_data_param { shape { dim: 3 dim: 2 }
            data_filler { type: "constant" value: 1 } } }
    layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "h" recurrent_param { num_output: 2
            weight_filler { type: "uniform" min: -1 } } }
    layer { name: "mean" type: "Reduction" bottom: "h" top: "mean" loss_weight: 1
            reduction_param { operation: MEAN } }
"""


def test_each_worker_goes_on_with_what_its_own_layers_carry(tmp_path):
    param = solver_param(CARRYING, f'max_iter: 6 snapshot: 3 snapshot_prefix: "{tmp_path / "s"}"')

    def act(worker):
        worker.solver.step(6)
        return parameters(worker.solver), worker.solver.net.layers["lstm"].carried()

    def resumed(worker):
        worker.solver.restore(tmp_path / "s_iter_3.solverstate")
        began_with = worker.solver.net.layers["lstm"].carried()
        worker.solver.step(3)
        return parameters(worker.solver), worker.solver.net.layers["lstm"].carried(), began_with

    before, after = in_team(2, param, act, options=PROMPT), in_team(2, param, resumed, options=PROMPT)
    assert not torch.equal(before[0][1][0], before[1][1][0])
    for (values, states), (values_again, states_again, _) in zip(before, after, strict=True):
        assert all(torch.equal(a, b) for a, b in zip([*values, *states], [*values_again, *states_again], strict=True))
    assert [began_with for _, _, began_with in in_team(3, param, resumed)] == [[], [], []]
