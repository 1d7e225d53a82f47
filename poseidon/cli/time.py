"""time: `caffe time --model=M [--iterations=50]` times a net's forward and backward pass, layer by layer."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from poseidon.cli.command import Command, Flags, listed, net_flags, require
from poseidon.cli.devices import device_for
from poseidon.cli.log import CommandLog
from poseidon.cli.nets import build_net
from poseidon.errors import UsageError
from poseidon.net import Stepwise
from poseidon.solver.log_line import number


def declare(flags: Flags) -> None:
    flags.flag("model", metavar="FILE", help="the net's prototxt")
    flags.flag("weights", default="", metavar="FILES", help="weights to load first (comma list)")
    flags.flag("iterations", type=int, default=50, help="how many passes (default: 50)")
    flags.flag("phase", choices=["TRAIN", "TEST"], default="TRAIN", type=str.upper, help="default: TRAIN")
    net_flags(flags)


def run(found: argparse.Namespace) -> int:
    model = require(found.model, "model", "the net's prototxt, as in --model=net.prototxt")
    if found.iterations < 1:
        raise UsageError(f"--iterations must be at least 1, got {found.iterations}")
    log = CommandLog()
    device = device_for(found.gpu)
    log.say("caffe.cpp:343", "Use CPU." if device.type == "cpu" else f"Use GPU with device ID {device.index}")
    net = build_net(model, found.phase, found, device, log)
    for path in listed(found.weights):
        net.load(path)
    timer = LayerTimer(Stepwise(net))
    log.say("caffe.cpp:351", "Performing Forward")
    log.say("caffe.cpp:356", f"Initial loss: {number(timer.warm_up())}")
    log.say("caffe.cpp:357", "Performing Backward")
    log.say("caffe.cpp:365", "*** Benchmark begins ***")
    log.say("caffe.cpp:366", f"Testing for {found.iterations} iterations.")
    begin = time.perf_counter()
    for iteration in range(1, found.iterations + 1):
        log.say("caffe.cpp:394", f"Iteration: {iteration} forward-backward time: {number(timer.run_once())} ms.")
    timer.report(log, found.iterations, (time.perf_counter() - begin) * 1e3)
    log.say("caffe.cpp:415", "*** Benchmark ends ***")
    return 0


class LayerTimer:
    """Milliseconds per layer and direction, added up over passes."""

    def __init__(self, run: Stepwise) -> None:
        self._run = run
        self._forward_ms = [0.0] * len(run.nodes)
        self._backward_ms = [0.0] * len(run.nodes)
        self._waits = torch.cuda.synchronize if run.net.device.type == "cuda" else None

    def warm_up(self) -> float:
        """One pass that is not counted; returns its loss."""
        loss = self._run.forward()
        self._run.backward()
        return loss

    def run_once(self) -> float:
        """One forward and backward pass; returns the milliseconds it took."""
        begin = time.perf_counter()
        for index in range(len(self._run.nodes)):
            self._forward_ms[index] += self._timed(self._run.forward_layer, index)
        self._run.net.draws.clock += 1
        for index in reversed(range(len(self._run.nodes))):
            self._backward_ms[index] += self._timed(self._run.backward_layer, index)
        return (time.perf_counter() - begin) * 1e3

    def _timed(self, call: Callable[[int], object], index: int) -> float:
        begin = time.perf_counter()
        call(index)
        if self._waits is not None:
            self._waits()
        return (time.perf_counter() - begin) * 1e3

    def report(self, log: CommandLog, num_passes: int, total_ms: float) -> None:
        log.say("caffe.cpp:397", "Average time per layer: ")
        for node, forward, backward in zip(self._run.nodes, self._forward_ms, self._backward_ms, strict=True):
            name = f"{node.layer.name:>10}"
            log.say("caffe.cpp:400", f"{name}\tforward: {number(forward / num_passes)} ms.")
            log.say("caffe.cpp:403", f"{name}\tbackward: {number(backward / num_passes)} ms.")
        log.say("caffe.cpp:408", f"Average Forward pass: {number(sum(self._forward_ms) / num_passes)} ms.")
        log.say("caffe.cpp:410", f"Average Backward pass: {number(sum(self._backward_ms) / num_passes)} ms.")
        log.say("caffe.cpp:412", f"Average Forward-Backward: {number(total_ms / num_passes)} ms.")
        log.say("caffe.cpp:414", f"Total Time: {number(total_ms)} ms.")


COMMAND = Command(declare, run)
