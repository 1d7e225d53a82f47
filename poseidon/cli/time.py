"""time: `caffe time --model=M [--iterations=50]` times a net's forward and backward pass, layer by layer."""

from __future__ import annotations

import argparse

from poseidon.cli.command import Command, Flags, files, net_flags, one_of, positive_number, require
from poseidon.cli.terminal import loading


def declare(flags: Flags) -> None:
    flags.flag("model", metavar="FILE", help="the net's prototxt")
    flags.flag("weights", default="", metavar="FILES", help="weights to load first (comma list)")
    flags.flag("iterations", type=positive_number, default=50, metavar="N", help="how many passes (50)")
    flags.flag("phase", type=one_of(("TRAIN", "TEST")), default="TRAIN", metavar="PHASE", help="TRAIN or TEST (TRAIN)")
    net_flags(flags)


def run(found: argparse.Namespace) -> int:
    files(require(found.model, "model", "the net's prototxt, as in --model=net.prototxt"), "model")
    paths = files(found.weights, "weights")
    with loading(found):
        from poseidon.cli.timing import time_net
    time_net(found, paths)
    return 0


COMMAND = Command(declare, run)
