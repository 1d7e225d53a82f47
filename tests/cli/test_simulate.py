"""`poseidon simulate` as a user runs it: text, JSON, a record, and ways to get it wrong."""

from __future__ import annotations

import json

import pytest

from poseidon.cli import main
from poseidon.plan import NetProfile
from poseidon.record import read
from tests.cli.nets import write_case
from tests.cli.test_plan import NET

FLAGS = ("--solver=solver.prototxt", "--workers=4", "--bandwidth=1gbit")


@pytest.fixture(autouse=True)
def _case(tmp_path, monkeypatch):
    write_case(tmp_path, net=NET)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def simulate(capsys):
    """Runs the command for JSON."""

    def run(*words: str) -> dict:
        assert main(["simulate", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def problem(capsys):
    """Runs the command for its error."""

    def run(*words: str) -> str:
        assert main(["simulate", *words]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run


def test_text(capsys):
    assert main(["simulate", *FLAGS, "--compute-ms=20", "--straggler=1:2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cluster   4 nodes with one worker each, 940 Mbit/s")
    assert lines[0].endswith("worker 1 takes 2 times as long")
    assert any(line.startswith("iteration ") and "ms waiting" in line for line in lines)
    assert lines[-1].startswith("slowest   worker 1 computes 40.0 ms")


def test_figures(simulate):
    """A hundredfold bandwidth: what is left is compute, and latency."""
    found = simulate(*FLAGS, "--compute-ms=20", "--bandwidth=100gbit", "--latency=1us", "--scheme=ring")
    assert found["workers"] == found["nodes"] == 4
    assert found["compute_s"] == pytest.approx(0.02)
    assert found["iteration_s"] == pytest.approx(0.02, rel=0.01)
    assert found["speedup"] == pytest.approx(4, rel=0.01)
    num_elems = 8 * 3 * 9 + 8 + 100 * 8 * 14 * 14 + 100
    assert found["bytes_sent"] == pytest.approx(2 * 3 / 4 * 4 * num_elems)
    assert set(found["schemes"].values()) == {"ring"}


def test_jitter_depends_on_the_seed(simulate):
    words = (*FLAGS, "--jitter=0.1", "--compute-ms=20", "--iterations=3")
    one, again, other = (simulate(*words, f"--seed={seed}") for seed in (1, 1, 2))
    assert one == again != other
    assert len(one["by_worker"]) == 4
    assert len(one["by_worker"][0]) == 3


def test_a_file_describes_and_flags_count_more(simulate, tmp_path):
    (tmp_path / "c.json").write_text('{"workers": 8, "bandwidth": "1gbit", "straggler": "7:3"}')
    assert simulate("--solver=solver.prototxt", "--cluster=c.json")["workers"] == 8
    found = simulate("--solver=solver.prototxt", "--cluster=c.json", "--nodes=2x2", "--straggler=3:1.5")
    assert (found["workers"], found["nodes"]) == (4, 2)


def test_a_profile_goes_out_and_comes_in(simulate, tmp_path):
    first = simulate(*FLAGS, "--save-profile=p.json")
    profile = NetProfile.from_json((tmp_path / "p.json").read_text())
    assert [layer.name for layer in profile.layers] == ["x", "conv", "fc", "loss"]
    again = simulate("--profile=p.json", *FLAGS[1:])
    assert again == first


def test_a_plan_that_is_given_is_played(simulate, capsys, tmp_path):
    assert main(["plan", *FLAGS, "--scheme=server", "--json"]) == 0
    (tmp_path / "plan.json").write_text(capsys.readouterr().out)
    assert set(simulate(*FLAGS, "--plan=plan.json")["schemes"].values()) == {"server"}


def test_a_record_is_left(capsys, tmp_path):
    assert main(["simulate", *FLAGS, "--record=rec"]) == 0
    assert "`poseidon report rec`" in capsys.readouterr().out
    run = read("rec")
    assert run.facts.kind == "simulation"
    assert "InnerProduct" in run.facts.net
    assert run.traces[0].events


def test_data_need_not_be_here(capsys, tmp_path):
    feed = (
        'layer { name: "d" type: "Data" top: "x" top: "t" data_param { source: "none" batch_size: 4 } '
        "transform_param { crop_size: 16 } }"
    )
    _, _, rest = NET.partition('layer { name: "conv"')
    write_case(tmp_path, net=f'name: "n"\n{feed}\nlayer {{ name: "conv"{rest}')
    assert main(["simulate", *FLAGS]) == 0
    assert "data      not here, its shapes as d has them" in capsys.readouterr().out


def test_mistakes(problem):
    assert "give the net to simulate once" in problem("--workers=2", "--bandwidth=1gbit")
    assert "give the net to simulate once" in problem(*FLAGS, "--profile=p.json")
    assert "--bandwidth is missing" in problem("--solver=solver.prototxt", "--workers=2")
    assert "--workers is missing" in problem("--solver=solver.prototxt", "--bandwidth=1gbit")
    assert "--profile=none: cannot be read" in problem("--profile=none", *FLAGS[1:])
    assert "no worker 9 to be a straggler" in problem(*FLAGS, "--straggler=9:2")
    assert "expected at least 1, got 0" in problem(*FLAGS, "--iterations=0")
    assert "record cannot be written there" in problem(*FLAGS, "--record=solver.prototxt/x")


def test_a_plan_for_other_workers_is_refused(problem, capsys, tmp_path):
    assert main(["plan", *FLAGS, "--json"]) == 0
    (tmp_path / "plan.json").write_text(capsys.readouterr().out)
    words = ("--solver=solver.prototxt", "--workers=3", "--bandwidth=1gbit", "--plan=plan.json")
    assert "make a plan for them" in problem(*words)
