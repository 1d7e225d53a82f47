"""A net's passes timed layer by layer, after one pass that is not counted."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from poseidon.cli.devices import device_for
from poseidon.cli.log import CommandLog
from poseidon.cli.nets import build_net, show_net
from poseidon.cli.terminal import console, has_display
from poseidon.log_line import number
from poseidon.net import Net, Stepwise


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Milliseconds of one layer in one pass, on average."""

    name: str
    type_name: str
    forward_ms: float
    backward_ms: float


class LayerTimer:
    """Milliseconds per layer and direction, added up over passes."""

    def __init__(self, run: Stepwise) -> None:
        self._run = run
        self._forward_ms = [0.0] * len(run.nodes)
        self._backward_ms = [0.0] * len(run.nodes)
        self._num_passes = 0
        self.total_ms = 0.0
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
        elapsed_ms = (time.perf_counter() - begin) * 1e3
        self.total_ms += elapsed_ms
        self._num_passes += 1
        return elapsed_ms

    def layers(self) -> list[LayerTime]:
        return [
            LayerTime(node.layer.name, node.layer.type_name, forward / self._num_passes, backward / self._num_passes)
            for node, forward, backward in zip(self._run.nodes, self._forward_ms, self._backward_ms, strict=True)
        ]

    def _timed(self, call: Callable[[int], object], index: int) -> float:
        begin = time.perf_counter()
        call(index)
        if self._waits is not None:
            self._waits()
        return (time.perf_counter() - begin) * 1e3


def time_net(found: argparse.Namespace, weights: Sequence[str]) -> None:
    """Builds the net, times its passes and tells the averages."""
    device = device_for(found.gpu)
    if has_display(found):
        shown = console()
        net = build_net(found.model, found.phase, found, device, None)
        show_net(net, shown)
        _time_on_terminal(_timer(net, weights), found.iterations, shown)
        return
    with CommandLog().taking_warnings() as log:
        log.say("caffe.cpp:343", "Use CPU." if device.type == "cpu" else f"Use GPU with device ID {device.index}")
        net = build_net(found.model, found.phase, found, device, log)
        _time_in_log(_timer(net, weights), found.iterations, log)


def _timer(net: Net, weights: Sequence[str]) -> LayerTimer:
    for path in weights:
        net.load(path)
    return LayerTimer(Stepwise(net))


# -- in Caffe's words -----------------------------------------------------------------------------------------------
def _time_in_log(timer: LayerTimer, num_passes: int, log: CommandLog) -> None:
    log.say("caffe.cpp:351", "Performing Forward")
    log.say("caffe.cpp:356", f"Initial loss: {number(timer.warm_up())}")
    log.say("caffe.cpp:357", "Performing Backward")
    log.say("caffe.cpp:365", "*** Benchmark begins ***")
    log.say("caffe.cpp:366", f"Testing for {num_passes} iterations.")
    for iteration in range(1, num_passes + 1):
        log.say("caffe.cpp:394", f"Iteration: {iteration} forward-backward time: {number(timer.run_once())} ms.")
    log.say("caffe.cpp:397", "Average time per layer: ")
    layers = timer.layers()
    for layer in layers:
        log.say("caffe.cpp:400", f"{layer.name:>10}\tforward: {number(layer.forward_ms)} ms.")
        log.say("caffe.cpp:403", f"{layer.name:>10}\tbackward: {number(layer.backward_ms)} ms.")
    log.say("caffe.cpp:408", f"Average Forward pass: {number(sum(layer.forward_ms for layer in layers))} ms.")
    log.say("caffe.cpp:410", f"Average Backward pass: {number(sum(layer.backward_ms for layer in layers))} ms.")
    log.say("caffe.cpp:412", f"Average Forward-Backward: {number(timer.total_ms / num_passes)} ms.")
    log.say("caffe.cpp:414", f"Total Time: {number(timer.total_ms)} ms.")
    log.say("caffe.cpp:415", "*** Benchmark ends ***")


# -- on a terminal --------------------------------------------------------------------------------------------------
def _time_on_terminal(timer: LayerTimer, num_passes: int, shown: Console) -> None:
    with Progress(console=shown, transient=True) as progress:
        task = progress.add_task("timing", total=num_passes)
        timer.warm_up()
        for _ in range(num_passes):
            timer.run_once()
            progress.advance(task)
    layers = timer.layers()
    sum_ms = sum(layer.forward_ms + layer.backward_ms for layer in layers)
    table = Table("layer", "type", box=None, pad_edge=False)
    for heading in ("forward ms", "backward ms", "share"):
        table.add_column(heading, justify="right")
    for layer in layers:
        share = (layer.forward_ms + layer.backward_ms) / sum_ms if sum_ms else 0.0
        numbers = (f"{layer.forward_ms:.3f}", f"{layer.backward_ms:.3f}", f"{share:.1%}")
        table.add_row(layer.name, layer.type_name, *numbers)
    table.add_section()
    forward_ms, backward_ms = (sum(getattr(layer, name) for layer in layers) for name in ("forward_ms", "backward_ms"))
    table.add_row("all", "", f"{forward_ms:.3f}", f"{backward_ms:.3f}", "", style="bold")
    shown.print(table)
    shown.print(f"{timer.total_ms / num_passes:.3f} ms forward and backward, on average of {num_passes} passes")
