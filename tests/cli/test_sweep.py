"""`poseidon plan --sweep` as a user runs it."""

from __future__ import annotations

import json

import pytest

from poseidon.cli import main
from tests.cli.nets import write_case
from tests.cli.test_plan import FLAGS, NET


@pytest.fixture(autouse=True)
def _case(tmp_path, monkeypatch):
    write_case(tmp_path, net=NET)
    monkeypatch.chdir(tmp_path)


def objects(capsys, *words: str) -> list[dict]:
    assert main(["plan", *FLAGS, "--workers=4", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_table(capsys):
    assert main(["plan", *FLAGS, "--workers=4", "--sweep=bandwidth,workers,batch", "--compute-ms=8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("spread over layers by multiplications; another batch's in proportion")
    assert lines[1].endswith("0.1 ms per message, batch 4 each")
    (now,) = {line[2:].split()[0] for line in lines if line.startswith("› ") and "Gbit" not in line} - {"1"}
    assert now == "4"  # workers and batch


def test_compute_of_another_batch_is_in_proportion(capsys):
    found = {entry["batch"]: entry["compute_s"] for entry in objects(capsys, "--sweep=batch", "--compute-ms=8")}
    assert found == pytest.approx({2: 0.004, 4: 0.008, 8: 0.016, 16: 0.032})


def test_sweep_agrees_with_the_plan(capsys):
    (now, more) = objects(capsys, "--sweep=workers=8")
    assert (now["workers"], more["workers"]) == (4, 8)
    assert main(["plan", *FLAGS, "--workers=8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["iteration_s"] == more["iteration_s"]


@pytest.mark.parametrize(("name", "start"), [("sweep.svg", b"<?xml"), ("sweep.png", b"\x89PNG")])
def test_plot(name, start, tmp_path, capsys):
    objects(capsys, "--sweep=bandwidth,workers", f"--plot={name}")
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--plot=x.svg",), "--plot draws a sweep: say over what"),
        (("--sweep=speed",), "a sweep goes over some of bandwidth, workers, batch"),
        (("--sweep=batch", "--plot=x.doc"), "x.doc: "),
        (("--sweep=batch", "--plot=none/x.svg"), "none/x.svg"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys):
    assert main(["plan", *FLAGS, "--workers=4", *words]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"poseidon: error: {message}")
    assert captured.err.count("\n") == 1
