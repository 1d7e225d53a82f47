"""PMLS's CSV: its form byte for byte, and its numbers against one worker's with the P-fold batch."""

from __future__ import annotations

import numpy as np
import pytest

from poseidon.errors import UsageError
from poseidon.run.distribute import DistributeOptions
from poseidon.run.net_outputs import NetOutputs
from poseidon.solver import events
from tests.run.jobs import built, in_team, picture_net, solver_param

VALUE = events.OutputValue


def test_the_form(tmp_path):
    seconds = iter([10.0, 10.5, 12.25, 13.0])
    writer = NetOutputs(str(tmp_path / "run"), 2, lambda: next(seconds))
    outputs = (VALUE("loss", 2.5, 1.0), VALUE("p", 0.25, 0), VALUE("p", 1, 0))
    writer(events.IterationShown(0, 2.5, 0.1, 0, 20, outputs))
    writer(events.TestDone(0, 1, None, (VALUE("accuracy", 0.125, 0.0), VALUE("l1", 2.0, 1.0), VALUE("l2", 3.0, 0.5))))
    writer(
        events.IterationShown(20, 1 / 3, 0.1, 20, 20, (VALUE("loss", 1 / 3, 1.0), VALUE("p", 0, 0), VALUE("p", 2, 0)))
    )
    writer.write()
    assert (tmp_path / "run.netoutputs").read_text() == (
        "Iteration,time,loss,loss,p[0],p[1],\n"
        "0,0.5,2.5,2.5,0.25,1,\n"
        "20,3,0.333333333,0.333333333,0,2,\n"
        "\n"
        "Iteration,time,loss,\n"
        "\n"
        "Iteration,time,loss,accuracy,l1,l2,\n"
        "0,2.25,3.5,0.125,2,3,\n"
        "\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run.netoutputs"]


def test_a_loss_that_was_computed_is_the_one_written(tmp_path):
    writer = NetOutputs(str(tmp_path / "run"), 1, lambda: 0.0)
    writer(events.TestDone(5, 0, 7.0, (VALUE("loss", 2.0, 1.0),)))
    assert writer.path.read_text().splitlines()[-2] == "5,0,7,2,"


def test_a_place_that_cannot_be_written_to_is_refused_at_once(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere/run.netoutputs: cannot write the net outputs: .*No such file"):
        NetOutputs(str(tmp_path / "nowhere" / "run"), 0)


def blocks_of(path):
    """Header and rows of numbers, without the time, of every block."""
    blocks = path.read_text().removesuffix("\n\n").split("\n\n")
    found = []
    for block in blocks:
        header, *rows = (line.removesuffix(",").split(",") for line in block.splitlines())
        found.append((header, np.array([[float(v) for v in row[:1] + row[2:]] for row in rows])))
    return found


def test_numbers_are_means_over_workers(pictures, tmp_path):
    text = "display: 2 max_iter: 6 test_interval: 3 test_iter: 3 test_iter: 1"
    options = DistributeOptions(net_outputs=str(tmp_path / "team"))
    in_team(3, solver_param(picture_net(pictures, 2), text), lambda worker: worker.solver.solve(), options=options)
    solver, _ = built(solver_param(picture_net(pictures, 6), text))
    solver.listeners.append(NetOutputs(str(tmp_path / "alone"), 2))
    solver.solve()
    team, alone = (blocks_of(tmp_path / f"{name}.netoutputs") for name in ("team", "alone"))
    assert [header for header, _ in team] == [
        ["Iteration", "time", "loss", "loss"],
        ["Iteration", "time", "loss", "loss", "accuracy"],
        ["Iteration", "time", "loss", "loss", "accuracy"],
    ]
    assert [rows[:, 0].tolist() for _, rows in team] == [[0, 2, 4], [0, 3, 6], [0, 3, 6]]
    for (_, rows), (_, expected) in zip(team, alone, strict=True):
        np.testing.assert_allclose(rows, expected, rtol=1e-8)


def test_what_was_shown_before_a_failure_is_written(pictures, tmp_path):
    options = DistributeOptions(net_outputs=str(tmp_path / "run"))

    def act(worker):
        worker.solver.step(5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_team(2, solver_param(picture_net(pictures, 2), "display: 1"), act, options=options)
    ((_, rows),) = blocks_of(tmp_path / "run.netoutputs")
    assert rows[:, 0].tolist() == [0, 1, 2, 3, 4]
