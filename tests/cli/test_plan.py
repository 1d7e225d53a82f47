"""`poseidon plan` as a user runs it: a table, JSON, and every way to get the flags wrong."""

from __future__ import annotations

import json
import os
import pty
import sys
import threading

import pytest

from poseidon.cli import caffe_main, main
from poseidon.plan import CommPlan, Scheme
from tests.cli.nets import write_case

NET = """
name: "small"
layer { name: "x" type: "DummyData" top: "x" top: "t" dummy_data_param {
    shape { dim: 4 dim: 3 dim: 16 dim: 16 } shape { dim: 4 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 8 kernel_size: 3 } }
layer { name: "fc" type: "InnerProduct" bottom: "c" top: "y" inner_product_param { num_output: 100 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "loss" }
"""
FLAGS = ("--solver=solver.prototxt", "--bandwidth=1gbit")


@pytest.fixture(autouse=True)
def _case(tmp_path, monkeypatch):
    write_case(tmp_path, net=NET)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def plan(capsys):
    """Runs the command for JSON."""

    def run(*words: str) -> CommPlan:
        assert main(["plan", *FLAGS, "--json", *words]) == 0
        return CommPlan.from_json(capsys.readouterr().out)

    return run


def test_table(capsys):
    assert main(["plan", *FLAGS, "--workers", "8"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "compute   estimated from multiplications at 6 TFLOP/s"
    assert lines[1] == "cluster   8 nodes with one worker each, 940 Mbit/s of payload per node, 0.1 ms per message"
    assert max(map(len, lines)) <= 100
    # fc: 100 × 1568 floats; dense 8·MN·7/8, factors 4·4·(M + N)·7 bytes
    (row,) = [line.split() for line in lines if line.startswith("fc/0")]
    assert row == ["fc/0", "+1", "100", "x", "1568", "1.1", "0.187", "FACTORS", "0.187", row[-1]]
    assert "iteration " in out


def test_json_has_the_same(plan):
    found = plan("--workers=8")
    assert found.cluster.node_workers == (1,) * 8
    assert found.cluster.bandwidth_bps == pytest.approx(0.94e9)
    unit = found.unit_of()["fc/0"]
    assert unit.scheme is Scheme.FACTORS
    assert unit.factor_bytes == 4 * 4 * (100 + 1568) * 7
    assert unit.dense_bytes == 8 * (100 * 1568 + 100) * 7 // 8


def test_json_is_one_line_that_other_tools_read(capsys):
    assert main(["plan", *FLAGS, "--workers=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wire"] == "fp32"


def test_nodes_latency_rate_and_wire(plan):
    found = plan("--nodes=2x4,1", "--latency=2ms", "--gpu-flops=1e9", "--wire=BF16")
    assert found.cluster.node_workers == (4, 4, 1)
    assert found.cluster.latency_s == pytest.approx(2e-3)
    assert found.cluster.flops == 1e9
    assert found.wire == "bf16"


def test_batch_of_each_worker(plan):
    one, ten = plan("--workers=2", "--batch=1"), plan("--workers=2", "--batch=10")
    assert ten.unit_of()["fc/0"].factor_bytes == 10 * one.unit_of()["fc/0"].factor_bytes
    assert ten.compute_s == pytest.approx(10 * one.compute_s)


def test_compute_as_given(plan, tmp_path):
    write_case(tmp_path, "iter_size: 4", net=NET)
    found = plan("--workers=2", "--compute-ms=80")
    assert found.compute_s == pytest.approx(0.080)


def test_compute_as_measured(plan):
    assert plan("--workers=2", "--measure").compute_s > 0


@pytest.mark.parametrize(("transform", "flags"), [("crop_size: 16", []), ("", ["--image=3x16x16"])])
@pytest.mark.parametrize("sweep", [[], ["--sweep=workers=4:8"]])
def test_data_need_not_be_here(transform, flags, sweep, capsys, tmp_path):
    write_case(tmp_path, net=without_data(transform))
    assert main(["plan", *FLAGS, "--workers=4", *flags, *sweep]) == 0
    out = capsys.readouterr().out
    assert "data      not here, its shapes as d has them" in out
    write_case(tmp_path, net=NET)
    assert main(["plan", *FLAGS, "--workers=4", *sweep]) == 0
    here = capsys.readouterr().out
    assert [line for line in out.splitlines() if not line.startswith("data ")] == here.splitlines()


def test_data_that_is_not_here_and_of_unknown_size(capsys, tmp_path):
    write_case(tmp_path, net=without_data(""))
    assert main(["plan", *FLAGS, "--workers=4"]) == 1
    assert "give their size, as in --image=1x28x28 (channels, height, width)" in capsys.readouterr().err
    assert main(["plan", *FLAGS, "--workers=4", "--image=28x28"]) == 1
    assert "expected channels, height and width, as in 3x224x224, got '28x28'" in capsys.readouterr().err


def without_data(transform: str) -> str:
    """The net, fed by a database that is elsewhere; for testing, by one that says nothing."""
    _, _, rest = NET.partition('layer { name: "conv"')
    feeds = [
        f'layer {{ name: "d" type: "Data" top: "x" top: "t" include {{ phase: {phase} }} '
        f'data_param {{ source: "none" batch_size: 4 }} transform_param {{ {options} }} }}'
        for phase, options in (("TRAIN", transform), ("TEST", ""))
    ]
    return f'name: "small"\n{feeds[0]}\n{feeds[1]}\nlayer {{ name: "conv"{rest}'


def test_schemes(plan):
    assert plan("--workers=4", "--scheme=ring").unit_of()["fc/0"].scheme is Scheme.RING
    assert plan("--workers=4", "--scheme=Factor_Server").unit_of()["fc/0"].scheme is Scheme.FACTOR_SERVER
    assert plan("--workers=4", "--units=fc=server,conv/0=ring").unit_of()["fc/0"].scheme is Scheme.SERVER


def test_clipping_is_a_barrier(plan, tmp_path, capsys):
    assert not plan("--workers=2").barrier
    write_case(tmp_path, "clip_gradients: 5", net=NET)
    assert plan("--workers=2").barrier
    assert main(["plan", *FLAGS, "--workers=2"]) == 0
    assert "barrier   every update waits for all gradients (clip_gradients)" in capsys.readouterr().out


def test_stages_choose_layers(plan, tmp_path):
    extra = (
        'layer { name: "more" type: "InnerProduct" bottom: "c" top: "z" include { stage: "wide" }'
        " inner_product_param { num_output: 9 } loss_weight: 1 }"
    )
    write_case(tmp_path, net=NET + extra)
    assert "more/0" not in plan("--workers=2").unit_of()
    assert "more/0" in plan("--workers=2", "--stage=wide").unit_of()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--bandwidth=1gbit", "--workers=2"), "--solver is missing"),
        (("--solver=solver.prototxt", "--workers=2"), "--bandwidth is missing: give the rate of a node's link"),
        (FLAGS, "--workers is missing: give the number of workers, as in --workers=8, or --nodes=2x4"),
        ((*FLAGS, "--workers=0"), "expected at least 1, got 0"),
        ((*FLAGS, "--workers=8", "--nodes=2x3"), "--nodes=2x3 has 6 workers, --workers says 8"),
        ((*FLAGS, "--nodes=2y3"), "nodes are written NODESxWORKERS"),
        (("--solver=solver.prototxt", "--workers=2", "--bandwidth=fast"), "a bandwidth is a number above 0"),
        ((*FLAGS, "--workers=2", "--latency=1"), "a time is a number with one of ns, us, ms, s"),
        ((*FLAGS, "--workers=2", "--gpu-flops=0"), "expected a number above 0, got '0'"),
        ((*FLAGS, "--workers=2", "--compute-ms=nan"), "expected a number above 0, got 'nan'"),
        ((*FLAGS, "--workers=2", "--compute-ms=x"), "expected a number, got 'x'"),
        ((*FLAGS, "--workers=2", "--compute-ms=5", "--measure"), "not both"),
        ((*FLAGS, "--workers=2", "--scheme=local"), "expected one of auto, ring, doubling, server"),
        ((*FLAGS, "--workers=2", "--wire=int8"), "expected one of fp32, bf16, fp16, got 'int8'"),
        ((*FLAGS, "--workers=2", "--units=fc"), "schemes of units are written NAME=SCHEME"),
        ((*FLAGS, "--workers=2", "--units=fc9=ring"), "no parameter that learns matches 'fc9'"),
        ((*FLAGS, "--workers=2", "--units=conv=factors"), "conv/0 cannot travel by factors, as 'conv' asks"),
        ((*FLAGS, "--workers=2", "--batch=0"), "expected at least 1, got 0"),
        (("--solver=none.prototxt", "--workers=2", "--bandwidth=1gbit"), "none.prototxt"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys):
    assert main(["plan", *words]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.startswith("poseidon: error: ")
    assert captured.err.count("\n") == 1


def test_caffe_has_no_such_verb(capsys):
    assert caffe_main(["plan", *FLAGS, "--workers=2"]) == 1
    assert "command 'plan'" in capsys.readouterr().err


def test_terminal_gets_a_drawn_table(monkeypatch):
    lines = on_terminal(monkeypatch, ["plan", *FLAGS, "--workers=4", "--plain"], columns=100)
    assert not any("│" in line for line in lines)
    lines = on_terminal(monkeypatch, ["plan", *FLAGS, "--workers=4"], columns=100)
    (row,) = [line for line in lines if "fc/0" in line and "│" in line]
    assert "FACTORS" in row
    assert max(map(len, lines)) <= 100


def on_terminal(monkeypatch, words: list[str], columns: int) -> list[str]:
    """What the command prints to a terminal as its standard output."""
    master, slave = pty.openpty()
    written = bytearray()

    def read() -> None:
        try:
            while data := os.read(master, 1 << 16):
                written.extend(data)
        except OSError:  # the other side has been closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    with open(slave, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        assert main(words) == 0
    reader.join()
    os.close(master)
    return written.decode().replace("\r", "").splitlines()
