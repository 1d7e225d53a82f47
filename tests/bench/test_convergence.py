"""The convergence runs: what is run, how a log becomes a run, and what the page makes of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import convergence, convergence_page
from bench.convergence import SUBJECTS, Run, Setup, append, net_text, read_runs, setups, solver_text
from poseidon.data.datasets import DATASETS
from poseidon.spec import parse_net, parse_solver


def run(workers: int, accuracy: float, scheme: str = "ring", staleness: int | None = None) -> Run:
    setup = Setup("lenet", workers, scheme, staleness, 600)
    return Run(setup, [[100.0, 1.0, 0.5, 0.5], [200.0, 2.0, 0.1, accuracy]], [[50.0, 0.5, 1.0], [150.0, 1.5, 0.3]])


def test_every_scheme_and_staleness_at_every_number_of_workers():
    found = list(setups(["lenet"], [1, 2, 8], 600))
    assert found[0].flags == []
    assert len(found) == 1 + 2 * (6 + 2)
    assert {tuple(setup.flags) for setup in found if setup.workers == 8} == {
        *(("--workers=8", f"--scheme={s}") for s in ("ring", "doubling", "server", "factors", "factor-server")),
        ("--workers=8", "--scheme=tree", "--pattern=gpi"),
        ("--workers=8", "--staleness=0"),
        ("--workers=8", "--staleness=3"),
    }


@pytest.mark.parametrize("name", sorted(SUBJECTS))
@pytest.mark.parametrize("workers", [1, 8])
def test_all_workers_together_have_the_single_ones_batch(name, workers):
    net = parse_net(net_text(SUBJECTS[name], Path("/data"), convergence.BATCH // workers)).net
    training, testing = (layer for layer in net.layer if layer.type == "Data")
    assert training.data_param.batch_size * workers == 64
    assert testing.data_param.batch_size * convergence.NUM_TESTS == 10_000
    stem = {"lenet": "mnist", "fashion": "fashion_mnist", "cifar10": "cifar10"}[name]
    assert training.data_param.source == f"/data/{stem}_train_lmdb"
    assert testing.data_param.source == f"/data/{stem}_test_lmdb"
    assert net.layer[-1].type == "SoftmaxWithLoss"


def test_solver_ends_with_a_test():
    solver = parse_solver(solver_text(Setup("lenet", 1, "auto", None, 600), Path("net.prototxt")))
    assert solver.max_iter % solver.test_interval == 0
    assert (solver.random_seed, solver.lr_policy) == (1, "poly")


def test_runs_survive_their_file(tmp_path):
    path = tmp_path / "runs.jsonl"
    for entry in (run(1, 0.98), run(2, 0.981, staleness=3)):
        append(entry, path)
    assert read_runs(path) == [run(1, 0.98), run(2, 0.981, staleness=3)]


def test_runs_of_other_lengths_are_not_compared():
    """Of two lengths the one with most runs counts."""
    short = [replace(entry, setup=replace(entry.setup, iterations=60)) for entry in (run(1, 0.5), run(2, 0.9))]
    long = [run(1, 0.98), run(2, 0.98), run(4, 0.98)]
    for runs in ([*short, *long], [*long, *short]):
        assert convergence.beside_single(runs, "lenet") == (long[0], long)
    assert convergence.beside_single(long[1:], "lenet") is None


def test_ending_elsewhere_is_told_and_is_no_success(capsys):
    runs = [run(1, 0.9800), run(2, 0.9819), run(8, 0.95, "server", staleness=3)]
    assert convergence.conclude(runs, ["lenet", "fashion"]) == 0
    assert convergence.conclude([*runs, run(4, 0.9779, "server")], ["lenet"]) == 1
    assert "outside    lenet, 4 workers, server: -0.21 points from 1 worker's" in capsys.readouterr().out


def test_data_is_made_from_originals_or_left_out(tmp_path, monkeypatch, capsys):
    made = []
    monkeypatch.setattr(convergence, "make_dataset", lambda *given: made.append(given))
    monkeypatch.setattr(convergence, "RUNS", tmp_path / "runs.jsonl")
    lenet, fashion = SUBJECTS["lenet"], SUBJECTS["fashion"]
    assert not convergence.has_data(lenet, tmp_path, {})
    assert convergence.has_data(lenet, tmp_path, convergence.sources_of("mnist=/files"))
    monkeypatch.setitem(DATASETS, "fashion-mnist", replace(DATASETS["fashion-mnist"], installed=lambda: Path("/there")))
    assert convergence.has_data(fashion, tmp_path, {})
    assert made == [("mnist", tmp_path, [Path("/files")]), ("fashion-mnist", tmp_path, [])]
    monkeypatch.setattr("sys.argv", ["convergence", "--subjects=lenet", f"--data={tmp_path}"])
    assert convergence.main() == 0
    told = capsys.readouterr().out
    assert "left out   lenet: its data is not here: poseidon data mnist" in told
    with pytest.raises(SystemExit, match="--from is NAME=PATH, with names of mnist"):
        convergence.sources_of("nothing=/files")


def test_page_bounds_exact_runs_and_shows_stale_ones():
    single = run(1, 0.9800)
    runs = [single, run(2, 0.9815), run(4, 0.9779, "server"), run(8, 0.95, "server", staleness=3)]
    assert convergence_page.verdict_text(runs, single) == (
        "2 exact runs, the farthest -0.21 points (4 workers, server): 1 within 0.2 points."
    )
    table = convergence_page.accuracies_text(runs, single)
    assert "| ring | 98.15% (+0.15) |  |  |" in table
    assert "| `--staleness 3` |  |  | 95.00% (-3.00) |" in table
    assert convergence_page.draw(runs, "LeNet").startswith(b"<?xml")
