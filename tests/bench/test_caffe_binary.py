"""Times told by a Caffe program: a script in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import caffe_binary

SCRIPT = """#!/bin/sh
echo "$1" > {folder}/verb
test -f "${{2#--model=}}" || exit 7
echo 'I1116 12:00:00.0 1 caffe.cpp:406] Average Forward pass: 1.5 ms.' >&2
echo 'I1116 12:00:00.0 1 caffe.cpp:410] Average Forward-Backward: {told} ms.' >&2
"""


def program(folder: Path, told: str) -> str:
    path = folder / "caffe"
    path.write_text(SCRIPT.format(folder=folder, told=told))
    path.chmod(0o755)
    return str(path)


def test_figure_is_read_from_the_log(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text("")
    assert caffe_binary.caffe_ms(program(tmp_path, "12.25"), net, 3) == 12.25
    assert (tmp_path / "verb").read_text() == "time\n"


def test_program_that_fails_is_an_error_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="ended with 7 and told no time"):
        caffe_binary.caffe_ms(program(tmp_path, "1"), tmp_path / "none.prototxt", 3)


def test_ratio_is_ours_over_theirs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(caffe_binary, "ITERATIONS", {"lenet": 1})
    slow = caffe_binary.measure(program(tmp_path, "100000"), "lenet", 2)
    assert slow.name == "lenet, batch 64: time / BVLC Caffe's"
    assert 0 < slow.low <= slow.value <= slow.high < 0.1
