"""How flags are spelled, and what a wrong one is answered with: one line that helps, exit code 1, no traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from poseidon.cli import CAFFE, POSEIDON, caffe_main, main
from poseidon.errors import UsageError
from tests.cli.nets import NET, write_case


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_case(tmp_path, "max_iter: 2 snapshot_after_train: false")
    return tmp_path


def told(words: str, capsys, program=caffe_main) -> str:
    """The one line that a mistake is answered with."""
    assert program(words.split()) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1
    assert "Traceback" not in lines[0]
    return lines[0]


# -- spelling -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "words",
    [
        "train --solver=solver.prototxt --sigint_effect=none",
        "train -solver solver.prototxt -sigint_effect none",
        "train --solver solver.prototxt --sigint-effect NONE",
        "train -solver=solver.prototxt -sigint-effect=none",
        "-solver solver.prototxt train --sigint_effect none",
        "--solver=solver.prototxt -sigint_effect=none train",
        "--debug -solver solver.prototxt train --level -1 --stage a,b",
    ],
)
def test_spellings_of_flags(words, capsys):
    assert caffe_main(words.split()) == 0
    log = capsys.readouterr().err
    assert "Optimization Done." in log
    assert ("level: -1" in log) == ("--level -1" in words)


def test_a_file_may_be_called_like_a_command(here, capsys):
    (here / "test").write_text((here / "solver.prototxt").read_text())
    assert caffe_main(["-solver", "test", "train"]) == 0
    assert caffe_main(["--solver=test", "train"]) == 0


def test_level_and_stages_choose_layers(here, capsys):
    (here / "net.prototxt").write_text(
        NET
        + 'layer { name: "more" type: "Silence" bottom: "x" include { min_level: 2 stage: "deep" } }'
        + 'layer { name: "less" type: "Silence" bottom: "x" include { max_level: 1 } }'
    )
    assert caffe_main(["time", "--model=net.prototxt", "--iterations=1", "--level=2", "--stage=wide,deep"]) == 0
    log = capsys.readouterr().err
    assert "Creating Layer more" in log
    assert "The NetState level (2) is above the max_level (1) specified by a rule in layer less" in log
    assert caffe_main(["time", "--model=net.prototxt", "--iterations=1", "--phase=test", "--level=2"]) == 0
    log = capsys.readouterr().err
    assert "The NetState did not contain stage 'deep' specified by a rule in layer more" in log
    assert "Creating Layer accuracy" in log


# -- help -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("words", [[], ["help"], ["--help"], ["-help"], ["-h"]])
@pytest.mark.parametrize(("program", "command"), [(caffe_main, CAFFE), (main, POSEIDON)])
def test_help_lists_the_commands(program, command, words, capsys):
    assert program(words) == 0
    listed = re.findall(r"^  ([\w-]+)  ", capsys.readouterr().out, re.M)
    assert listed == list(command.modules)
    assert [verb.replace("-", "_") for verb in listed[:4]] == ["train", "test", "time", "device_query"]


@pytest.mark.parametrize("words", ["train --help", "train -help", "train -h", "--debug train --solver=x --help"])
def test_help_of_a_command_lists_its_flags(words, capsys):
    assert caffe_main(words.split()) == 0
    flags = re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, re.M)
    expected = "--debug --solver --snapshot --weights --sigint-effect --sighup-effect --gpu --level --stage --plain"
    ours = "--workers --threads --dtype --net-outputs --scheme --schemes --reduce --wire --sync-bn --verify-replicas"
    ours += " --interface --bandwidth --latency --report-after --hang-after --max-restarts --hosts --hostfile --ssh"
    ours += " --min-workers --keep"
    assert [flag for flag in flags if flag in expected.split()] == expected.split(), "Caffe's, in its order"
    assert set(ours.split()) <= set(flags)
    assert len(flags) == len(set(flags))


def test_version(capsys):
    assert caffe_main(["--version"]) == 0
    assert re.fullmatch(r"caffe of Poseidon \d+\.\d+\.\d+\n", capsys.readouterr().out)


# -- mistakes -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tain", "there is no command 'tain' (did you mean 'train'?); commands: train, test, time, device_query"),
        ("fly --solver=x", "there is no command 'fly'; commands: train, test, time, device_query"),
        ("--solver=solver.prototxt", "which command? Expected one of train, test, time, device_query, as in"),
        ("train", "--solver is missing: give the solver's prototxt, as in --solver=solver.prototxt"),
        ("train --solver=", "--solver is missing"),
        ("train --solver", "--solver: expected one argument; `caffe train --help` lists the flags"),
        ("train --slver=x", "there is no flag --slver (did you mean '--solver'?); `caffe train --help` lists"),
        ("train -sigint_efect none", "there is no flag -sigint_efect (did you mean '--sigint-effect'?)"),
        ("train --xyzzy", "there is no flag --xyzzy; `caffe train --help`"),
        ("train s.prototxt", "'s.prototxt' belongs to no flag; a value goes with its flag, as in --"),
        ("train --solver=solver.prototxt test", "'test' belongs to no flag"),
        ("train --solver=nope.prototxt", "nope.prototxt: no such file; check the path"),
        ("train --solver=.", ".: found a folder, expected a file"),
        ("train --solver=net.prototxt", "net.prototxt:2:1: found 'name'"),
        ("train --solver=solver.prototxt --level=high", "--level: expected a whole number, got 'high'"),
        ("train --solver=solver.prototxt --level=9999999999", "--level: expected a number of at most 31 bits"),
        (
            "train --solver=solver.prototxt --sigint_effect=stopp",
            "--sigint-effect: expected one of stop, snapshot, none, got 'stopp' (did you mean 'stop'?)",
        ),
        (
            "train --solver=solver.prototxt --snapshot=a.solverstate --weights=b.caffemodel",
            "give --snapshot to go on training or --weights to fine-tune, not both",
        ),
        ("train --solver=solver.prototxt --snapshot=gone", "--snapshot=gone: there is no file 'gone'; a relative path"),
        ("train --solver=solver.prototxt --weights=net.prototxt,gone", "there is no file 'gone'"),
        ("train --solver=solver.prototxt --gpu=x", "--gpu takes `all` or numbers separated by commas, got 'x'"),
        ("train --solver=solver.prototxt --gpu=99", "--gpu=99: there is no GPU 99; PyTorch sees"),
        ("test --model=net.prototxt", "--weights is missing: give the weights to score"),
        ("test --weights=net.prototxt", "--model is missing: give the net's prototxt"),
        ("test --model=net.prototxt --weights=w --iterations=0", "--iterations: expected at least 1, got 0"),
        ("time --model=gone.prototxt", "--model=gone.prototxt: there is no file 'gone.prototxt'"),
        ("time --model=net.prototxt --phase=dev", "--phase: expected one of TRAIN, TEST, got 'dev'"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys):
    line = told(words, capsys)
    assert line.startswith("caffe: error: ")
    assert message in line


def test_poseidon_names_itself(capsys):
    assert told("trian", capsys, main).startswith(
        "poseidon: error: there is no command 'trian' (did you mean 'train'?)"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('type: "SDG"', "SDG' (did you mean 'SGD'?)"),
        ("gama: 1", "solver.prototxt:1:93: found 'gama'"),
        ("iter_size: 0", "iter_size must be at least 1, got 0"),
        ("test_iter: 1", "a solver with test nets needs a test_interval"),
    ],
)
def test_mistakes_in_the_solver(settings, message, here, capsys):
    write_case(here, settings)
    assert caffe_main(["train", "--solver=solver.prototxt"]) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("caffe: error: ")
    assert message in last


def test_a_folder_for_snapshots_that_is_missing_is_told_before_training(here, capsys):
    text = (here / "solver.prototxt").read_text().replace("snapshot_after_train: false", "")
    (here / "solver.prototxt").write_text(text.replace('"snap"', '"gone/snap"'))
    assert told("train --solver=solver.prototxt", capsys) == (
        "caffe: error: cannot write to snapshot_prefix 'gone/snap': No such file or directory; "
        "the folder must exist and be writable"
    )


def test_debug_shows_the_traceback():
    with pytest.raises(UsageError, match="--solver is missing"):
        caffe_main(["train", "--debug"])
    with pytest.raises(UsageError, match="no command"):
        caffe_main(["-debug", "tain"])


def test_mistakes_are_told_without_pytorch(here):
    """It takes seconds to import; nobody should wait that long to hear about a typo."""
    script = (
        "import sys; from poseidon.cli import caffe_main\n"
        "for words in (['train', '--slver=x'], ['train', '--solver=gone'], ['train', '--help'], ['--version']): "
        "caffe_main(words)\n"
        "print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "False"
