"""Training logs: rows and files as Caffe's parsers make them, dates of both kinds, charts."""

from __future__ import annotations

import csv
import io
import math
import sys
from pathlib import Path

import pytest

from poseidon.cli import main
from poseidon.errors import DataError
from poseidon.tools.log_charts import CHARTS, curve
from poseidon.tools.log_tables import csv_text, write_tables
from poseidon.tools.training_log import read_log

LOGS = Path(__file__).parents[1] / "golden" / "formats" / "logs"

# What Caffe logs; the comments say what its parsers make of it.
LOG = """\
I1231 23:59:50.000000  1 caffe.cpp:197] Use CPU.
I1231 23:59:58.000000  1 solver.cpp:289] Solving net
I1231 23:59:58.000000  1 solver.cpp:290] Learning Rate Policy: step
I1231 23:59:58.500000  1 solver.cpp:347] Iteration 0, Testing net (#0)
I1231 23:59:59.000000  1 solver.cpp:414]     Test net output #0: accuracy = 0.1
I1231 23:59:59.000000  1 solver.cpp:414]     Test net output #1: loss = 2.30259 (* 1 = 2.30259 loss)
I0101 00:00:00.250000  1 solver.cpp:239] Iteration 0 (0 iter/s, 1.5s/100 iters), loss = 2.4
I0101 00:00:00.250000  1 solver.cpp:258]     Train net output #0: loss = 2.4 (* 1 = 2.4 loss)
I0101 00:00:00.250000  1 sgd_solver.cpp:112] Iteration 0, lr = 0.01
this line is none of Caffe's
I0101 00:00:02.000000  1 solver.cpp:239] Iteration 100 (57 iter/s, 1.75s/100 iters), loss = nan
I0101 00:00:02.000000  1 solver.cpp:258]     Train net output #0: loss = nan (* 1 = nan loss)
I0101 00:00:02.000000  1 sgd_solver.cpp:112] Iteration 100, lr = 1e-05
I0101 00:00:03.000000  1 solver.cpp:327] Iteration 200, loss = 1.5
I0101 00:00:03.000000  1 solver.cpp:347] Iteration 200, Testing net (#0)
I0101 00:00:03.500000  1 solver.cpp:414]     Test net output #0: accuracy = 0.9
I0101 00:00:03.500000  1 solver.cpp:414]     Test net output #1: loss = 0.5 (* 1 = 0.5 loss)
"""


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(LOG)
    return path


def test_rows_over_the_new_year(log):
    found = read_log(str(log))
    assert found.test == [
        {"NumIters": 0.0, "Seconds": 1.0, "LearningRate": 1e-05, "accuracy": 0.1, "loss": 2.30259},
        {"NumIters": 200.0, "Seconds": 5.5, "LearningRate": 1e-05, "accuracy": 0.9, "loss": 0.5},
    ]
    # The rate is that of the display before; the first row takes the second one's.
    assert [(row["NumIters"], row["Seconds"], row["LearningRate"]) for row in found.train] == [
        (0.0, 2.25, 0.01),
        (100.0, 4.0, 0.01),
    ]
    assert found.train[0]["loss"] == 2.4
    assert math.isnan(found.train[1]["loss"])


def test_a_single_row_is_kept(tmp_path):
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in LOG.splitlines()[:8]))
    found = read_log(str(tmp_path / "log"))
    assert [row["accuracy"] for row in found.test] == [0.1]
    assert math.isnan(found.test[0]["LearningRate"])


def test_a_row_that_was_cut_off_is_left_out(tmp_path):
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in LOG.splitlines()[:-1]))
    assert [row["NumIters"] for row in read_log(str(tmp_path / "log")).test] == [0.0]


def test_dates_with_a_year(tmp_path):
    text = LOG.replace("I1231", "I20231231").replace("I0101", "I20240101")
    (tmp_path / "log").write_text(text)
    assert [row["Seconds"] for row in read_log(str(tmp_path / "log")).test] == [1.0, 5.5]


def test_two_test_nets_share_a_row(tmp_path):
    lines = ["I0101 00:00:00.0 1 s.cpp:1] Solving net"]
    for iteration in (0, 5, 10):
        for net, name in enumerate(("accuracy", "recall")):
            lines.append(f"I0101 00:00:0{iteration // 5}.0 1 s.cpp:1] Iteration {iteration}, Testing net (#{net})")
            lines.append(f"I0101 00:00:0{iteration // 5}.0 1 s.cpp:1]     Test net output #0: {name} = 0.{net + 1}")
    (tmp_path / "log").write_text("\n".join(lines))
    found = read_log(str(tmp_path / "log"))
    assert [(row["NumIters"], row["accuracy"], row["recall"]) for row in found.test] == [
        (0.0, 0.1, 0.2),
        (5.0, 0.1, 0.2),
        (10.0, 0.1, 0.2),
    ]
    assert [(point.iteration, point.accuracy, point.loss) for point in found.scores] == [
        (0, 0.1, None),
        (5, 0.1, None),
        (10, 0.1, None),
    ]


@pytest.mark.parametrize("name", ["train", "train_nesterov_hdf5_snapshot", "train_resume"])
def test_caffes_own_logs(name):
    path = LOGS / name / "expected.log"
    found = read_log(str(path))
    lines = path.read_text().splitlines()
    displays = [line for line in lines if " iters), loss = " in line]
    assert [f"{point.loss:g}" for point in found.losses[: len(displays)]] == [
        line.rpartition("= ")[2].strip() for line in displays
    ]
    rates = [line.rpartition("= ")[2].strip() for line in lines if ", lr = " in line]
    assert [f"{point.rate:g}" for point in found.losses if point.rate is not None] == rates
    accuracies = [line.rpartition("= ")[2].strip() for line in lines if "Test net output #0: accuracy" in line]
    assert [f"{point.accuracy:g}" for point in found.scores] == accuracies


def test_no_training_log(tmp_path):
    (tmp_path / "log").write_text("I0101 00:00:00.0 1 caffe.cpp:1] Use CPU.\n")
    with pytest.raises(DataError, match=r"log: has no line `Solving …`"):
        read_log(str(tmp_path / "log"))
    with pytest.raises(DataError, match=r"gone: cannot be read"):
        read_log(str(tmp_path / "gone"))


# -- files ------------------------------------------------------------------------------------------------------------
def test_csv_files(log, tmp_path, capsys):
    assert main(["parse-log", str(log), str(tmp_path), "--verbose"]) == 0
    assert capsys.readouterr().out == f"Wrote {log}.train.csv\nWrote {log}.test.csv\n"
    assert (tmp_path / "train.log.test.csv").read_bytes() == (
        b"NumIters,Seconds,LearningRate,accuracy,loss\r\n0.0,1.0,1e-05,0.1,2.30259\r\n200.0,5.5,1e-05,0.9,0.5\r\n"
    )
    assert (tmp_path / "train.log.train.csv").read_bytes() == (
        b"NumIters,Seconds,LearningRate,loss\r\n0.0,2.25,0.01,2.4\r\n100.0,4.0,0.01,nan\r\n"
    )


def test_another_delimiter(log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["parse-log", "train.log", "--delimiter", ";"]) == 0
    assert (tmp_path / "train.log.test.csv").read_text().startswith("NumIters;Seconds;")


def test_columns_that_come_later():
    rows = [{"NumIters": 0.0, "a": 1.0}, {"NumIters": 1.0, "b": 2.0}]
    assert list(csv.DictReader(io.StringIO(csv_text(rows)))) == [
        {"NumIters": "0.0", "a": "1.0", "b": ""},
        {"NumIters": "1.0", "a": "", "b": "2.0"},
    ]


def test_tables_of_old(log, tmp_path):
    write_tables(read_log(str(log)), str(tmp_path))
    assert (tmp_path / "train.log.test").read_text() == (
        "#Iters Seconds TestAccuracy TestLoss\n0    0.500000  0.1  2.30259\n200  5.000000  0.9  0.5\n"
    )
    assert (tmp_path / "train.log.train").read_text() == (
        "#Iters Seconds TrainingLoss LearningRate\n"
        "0    2.250000  2.4  0.01\n100  4.000000  nan  1e-05\n200  5.000000  1.5\n"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "LOG is missing"),
        (["gone.log"], "gone.log: cannot be read"),
        (["train.log", "nowhere"], "nowhere: there is no such folder"),
        (["train.log", "--delimiter=ab"], "--delimiter is one character"),
    ],
)
def test_mistakes(words, expected, log, monkeypatch, capsys):
    monkeypatch.chdir(log.parent)
    assert main(["parse-log", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


# -- charts -----------------------------------------------------------------------------------------------------------
def test_the_eight_charts():
    assert [chart.title for chart in CHARTS] == [
        "Test accuracy vs. Iters",
        "Test accuracy vs. Seconds",
        "Test loss vs. Iters",
        "Test loss vs. Seconds",
        "Train learning rate vs. Iters",
        "Train learning rate vs. Seconds",
        "Train loss vs. Iters",
        "Train loss vs. Seconds",
    ]


def test_their_points(log):
    found = read_log(str(log))
    expected = [
        ([0, 200], [0.1, 0.9]),
        ([0.5, 5.0], [0.1, 0.9]),
        ([0, 200], [2.30259, 0.5]),
        ([0.5, 5.0], [2.30259, 0.5]),
        ([0, 100], [0.01, 1e-05]),
        ([2.25, 4.0], [0.01, 1e-05]),
    ]
    assert [curve(chart, found) for chart in CHARTS[:6]] == expected
    for chart, at in zip(CHARTS[6:], ([0, 100, 200], [2.25, 4.0, 5.0]), strict=True):
        xs, ys = curve(chart, found)
        assert xs == at
        assert ys[0] == 2.4
        assert math.isnan(ys[1])


def test_a_chart_is_drawn(log, tmp_path):
    other = tmp_path / "other.log"
    other.write_text(LOG)
    assert main(["plot-log", "2", str(tmp_path / "chart.png"), str(log), str(other)]) == 0
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert main(["plot-log", "7", str(tmp_path / "chart.svg"), str(log), str(other)]) == 0
    drawn = (tmp_path / "chart.svg").read_text()
    for label in ("Train loss vs. Seconds", "train", "other"):
        assert f"<!-- {label} -->" in drawn


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["0", "x.png"], "LOG is missing"),
        (["8", "x.png", "train.log"], "there is no chart '8'; charts: 0 Test accuracy vs. Iters, 1 "),
        (["-1", "x.png", "train.log"], "there is no flag -1"),
        (["six", "x.png", "train.log"], "there is no chart 'six'"),
        (["0", "x.gif?", "train.log"], "give a name that ends in .png"),
        (["0", "x.png", "bare.log"], "bare.log: has nothing to show as 'Test accuracy vs. Iters'"),
    ],
)
def test_charts_that_cannot_be(words, expected, log, monkeypatch, capsys):
    monkeypatch.chdir(log.parent)
    (log.parent / "bare.log").write_text("I0101 00:00:00.0 1 s.cpp:1] Solving net\n")
    assert main(["plot-log", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    assert not (log.parent / "x.png").exists()


def test_without_matplotlib(log, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["plot-log", "0", str(log.parent / "x.png"), str(log)]) == 1
    assert capsys.readouterr().err == (
        'poseidon: error: charts need the package matplotlib: pip install "poseidon-dl[plot]"\n'
    )
