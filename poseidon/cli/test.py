"""test: `caffe test --model=M --weights=W [--iterations=50]` scores a net in its TEST phase."""

from __future__ import annotations

import argparse
from collections import defaultdict

import torch

from poseidon.cli.command import Command, Flags, listed, net_flags, require
from poseidon.cli.devices import device_for
from poseidon.cli.log import CommandLog
from poseidon.cli.nets import build_net
from poseidon.errors import UsageError
from poseidon.solver.events import OutputValue
from poseidon.solver.log import output_text
from poseidon.solver.log_line import number
from poseidon.solver.testing import output_values


def declare(flags: Flags) -> None:
    flags.flag("model", metavar="FILE", help="the net's prototxt")
    flags.flag("weights", metavar="FILE", help="the weights to score")
    flags.flag("iterations", type=int, default=50, help="how many batches (default: 50)")
    net_flags(flags)


def run(found: argparse.Namespace) -> int:
    model = require(found.model, "model", "the net's prototxt, as in --model=net.prototxt")
    weights = require(found.weights, "weights", "the weights to score, as in --weights=net.caffemodel")
    if found.iterations < 1:
        raise UsageError(f"--iterations must be at least 1, got {found.iterations}")
    log = CommandLog()
    device = device_for(found.gpu)
    log.say("caffe.cpp:275", "Use CPU." if device.type == "cpu" else f"Use GPU with device ID {device.index}")
    net = build_net(model, "TEST", found, device, log)
    for path in listed(weights):
        net.load(path)
    log.say("caffe.cpp:281", f"Running for {found.iterations} iterations.")
    loss, scores = 0.0, defaultdict[int, list[OutputValue]](list)
    for batch in range(found.iterations):
        with torch.no_grad():
            outputs = net()
        loss += 0.0 if outputs.loss is None else outputs.loss.item()
        for index, score in enumerate(output_values(net, outputs)):
            scores[index].append(score)
            log.say("caffe.cpp:304", f"Batch {batch}, {score.blob} = {number(score.value)}")
    log.say("caffe.cpp:309", f"Loss: {number(loss / found.iterations)}")
    for values in scores.values():
        mean = sum(score.value for score in values) / found.iterations
        log.say("caffe.cpp:321", output_text(OutputValue(values[0].blob, mean, values[0].loss_weight)))
    return 0


COMMAND = Command(declare, run)
