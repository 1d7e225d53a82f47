"""test: `caffe test --model=M --weights=W [--iterations=50]` scores a net in its TEST phase."""

from __future__ import annotations

import argparse

from poseidon.cli.command import Command, Flags, files, net_flags, positive_number, require
from poseidon.cli.terminal import loading


def declare(flags: Flags) -> None:
    flags.flag("model", metavar="FILE", help="the net's prototxt")
    flags.flag("weights", metavar="FILE", help="the weights to score")
    flags.flag("iterations", type=positive_number, default=50, metavar="N", help="how many batches (50)")
    net_flags(flags)


def run(found: argparse.Namespace) -> int:
    files(require(found.model, "model", "the net's prototxt, as in --model=net.prototxt"), "model")
    weights = require(found.weights, "weights", "the weights to score, as in --weights=net.caffemodel")
    paths = files(weights, "weights")
    with loading(found):
        from poseidon.cli.scoring import score
    score(found, paths)
    return 0


COMMAND = Command(declare, run)
