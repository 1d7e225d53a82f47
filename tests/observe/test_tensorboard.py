"""Event files, read by TensorBoard's own reader; histograms against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing import event_accumulator

from poseidon.errors import RecordError
from poseidon.observe.event_file import EventFile
from poseidon.observe.tensorboard import Histograms, TensorBoard, histogram_of
from poseidon.record import Facts, Metric, WorkerFigures
from poseidon.solver import Solver
from tests.solver.small import net_message, solver_message, write_data


def loaded(folder):
    found = event_accumulator.EventAccumulator(str(folder), dict.fromkeys(("scalars", "tensors", "histograms"), 0))
    found.Reload()
    return found


def solver_of(tmp_path, text=""):
    return Solver(solver_message(net_message(write_data(tmp_path)), text))


def test_curves_and_texts(tmp_path):
    board = TensorBoard(str(tmp_path / "tb"), solver_of(tmp_path))
    board.begin(Facts("run", (), 0.0, configuration={"base_lr": "0.1"}, net='name: "näme"'))
    worker = WorkerFigures(3, 0.25, 0.5, 10.0, 20.0)
    board.write(Metric("train", 0, 0.0, {"loss": 2.5, "odd": None}, 2.25, 0.1, 100.0, 0.5, (worker,)))
    board.write(Metric("train", 1 << 40, 1.0, {"loss": float("nan")}, 1e300))
    board.write(Metric("test", 10, 1.0, {"accuracy": 0.5}, net_index=1))
    board.end(Facts("run", (), 0.0, outcome="trained to iteration 10"))
    found = loaded(tmp_path / "tb")
    assert set(found.Tags()["scalars"]) == {
        *("train/loss", "train/total_loss", "train/learning_rate", "speed/samples_per_second"),
        *("speed/iteration_seconds", "rank 3/compute_seconds", "rank 3/wait_seconds", "rank 3/sent_bytes"),
        *("rank 3/received_bytes", "rank 3/staleness", "test 1/accuracy"),
    }
    (first, second) = found.Scalars("train/loss")
    assert (first.step, first.value) == (0, 2.5)
    assert second.step == 1 << 40
    assert np.isnan(second.value)
    assert [entry.value for entry in found.Scalars("train/total_loss")] == [2.25, float("inf")]
    assert found.Scalars("test 1/accuracy")[0].step == 10
    texts = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in found.Tags()["tensors"]}
    assert texts["configuration"].endswith("| base_lr | 0.1 |\n")
    assert texts["net"] == '    name: "näme"\n'
    assert texts["outcome"] == "trained to iteration 10"
    assert found.SummaryMetadata("net").plugin_data.plugin_name == "text"


def test_parameters_and_gradients_on_demand(tmp_path):
    """Of every second iteration; values are those of the parameters then."""
    solver = solver_of(tmp_path, "iter_size: 2")
    file = EventFile(tmp_path / "tb")
    histograms = Histograms(solver, file, 2)
    solver.step(3)
    histograms.close()
    histograms.close()
    solver.step(2)
    file.close()
    found = loaded(tmp_path / "tb")
    names = ("fc1/0", "fc1/1", "fc2/0", "fc2/1")
    assert set(found.Tags()["histograms"]) == {
        f"{kind}/{name}" for kind in ("parameters", "gradients") for name in names
    }
    entries = found.Histograms("parameters/fc1/0")
    assert [entry.step for entry in entries] == [0, 2]
    assert entries[0].histogram_value.num == 15
    assert entries[0].histogram_value.min != entries[1].histogram_value.min
    assert solver.listeners == []


@pytest.mark.parametrize("shape", [(1000,), (30, 7), (1,)])
def test_histograms_count_what_numpy_counts(tmp_path, shape):
    values = torch.from_numpy(np.random.RandomState(3).standard_normal(shape).astype(np.float32))
    file = EventFile(tmp_path)
    file.histograms({"x": histogram_of(values)}, 5)
    file.close()
    found = loaded(tmp_path).Histograms("x")[0].histogram_value
    flat = values.double().numpy().reshape(-1)
    assert (found.min, found.max, found.num) == (flat.min(), flat.max(), flat.size)
    assert found.sum == pytest.approx(flat.sum())
    assert found.sum_squares == pytest.approx((flat**2).sum())
    assert sum(found.bucket) == flat.size
    if flat.size > 1:
        counts, edges = np.histogram(flat, 64)
        assert list(found.bucket) == list(counts)
        np.testing.assert_allclose(found.bucket_limit, edges[1:], rtol=1e-12)


def test_what_is_not_finite_is_left_out():
    values = torch.tensor([1.0, float("nan"), 2.0, float("inf")])
    assert histogram_of(values).count == 2
    assert histogram_of(torch.tensor([float("nan")])) is None
    assert histogram_of(torch.empty(0)) is None


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot be written there"):
        EventFile(tmp_path / "file")
    file = EventFile(tmp_path)
    file.close()
    with pytest.raises(RecordError, match="closed already"):
        file.scalars({"x": 1.0}, 0)
