"""A net scored over a number of batches: every output element's mean, and the mean of the whole loss."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
from rich.progress import Progress

from poseidon.cli.devices import device_for
from poseidon.cli.log import CommandLog
from poseidon.cli.nets import build_net, show_net
from poseidon.cli.progress import outputs_text
from poseidon.cli.terminal import console, has_display
from poseidon.errors import UsageError
from poseidon.log_line import number
from poseidon.net import Net
from poseidon.solver.events import OutputValue
from poseidon.solver.log import output_text
from poseidon.solver.testing import output_values

# The number of a batch, and what it gave.
SeeBatch = Callable[[int, Sequence[OutputValue]], None]


class Scores:
    """Sums over batches, in Python's double precision."""

    def __init__(self) -> None:
        self._num_batches = 0
        self._loss = 0.0
        self._outputs: list[OutputValue] = []
        self._sums: list[float] = []

    def add(self, loss: float, outputs: Sequence[OutputValue]) -> None:
        if self._num_batches and len(outputs) != len(self._sums):
            raise UsageError(
                f"the net gave {len(outputs)} output values in batch {self._num_batches}, {len(self._sums)} in those "
                "before; their mean needs the same number in all"
            )
        self._outputs = self._outputs or list(outputs)
        self._sums = self._sums or [0.0] * len(outputs)
        self._loss += loss
        self._sums = [total + output.value for total, output in zip(self._sums, outputs, strict=True)]
        self._num_batches += 1

    @property
    def loss(self) -> float:
        return self._loss / self._num_batches

    @property
    def outputs(self) -> list[OutputValue]:
        return [
            OutputValue(output.blob, total / self._num_batches, output.loss_weight)
            for output, total in zip(self._outputs, self._sums, strict=True)
        ]


def score(found: argparse.Namespace, weights: Sequence[str]) -> None:
    """Builds the net, loads the weights, runs the batches and tells the means."""
    if has_display(found):
        _score_on_terminal(found, weights)
        return
    with CommandLog().taking_warnings() as log:
        device = device_for(found.gpu)
        log.say("caffe.cpp:275", "Use CPU." if device.type == "cpu" else f"Use GPU with device ID {device.index}")
        net = _loaded(build_net(found.model, "TEST", found, device, log), weights)
        log.say("caffe.cpp:281", f"Running for {found.iterations} iterations.")

        def see(batch: int, outputs: Sequence[OutputValue]) -> None:
            for output in outputs:
                log.say("caffe.cpp:304", f"Batch {batch}, {output.blob} = {number(output.value)}")

        scores = run_batches(net, found.iterations, see)
        log.say("caffe.cpp:309", f"Loss: {number(scores.loss)}")
        for output in scores.outputs:
            log.say("caffe.cpp:321", output_text(output))


def _score_on_terminal(found: argparse.Namespace, weights: Sequence[str]) -> None:
    shown = console()
    net = _loaded(build_net(found.model, "TEST", found, device_for(found.gpu), None), weights)
    show_net(net, shown)
    with Progress(console=shown, transient=True) as progress:
        task = progress.add_task("scoring", total=found.iterations)
        scores = run_batches(net, found.iterations, lambda batch, outputs: progress.advance(task))
    shown.print(f"mean over {found.iterations} batches:  {outputs_text(scores.outputs)}")


def _loaded(net: Net, weights: Sequence[str]) -> Net:
    for path in weights:
        net.load(path)
    return net


def run_batches(net: Net, num_batches: int, see: SeeBatch) -> Scores:
    """Runs the net over its next batches."""
    if net.inputs:
        raise UsageError(
            f"{net.source.filename} takes {', '.join(net.inputs)} from its caller; to be scored a net needs a data "
            "layer for its TEST phase"
        )
    scores = Scores()
    for batch in range(num_batches):
        with torch.no_grad():
            result = net()
        outputs = output_values(net, result)
        scores.add(0.0 if result.loss is None else result.loss.item(), outputs)
        see(batch, outputs)
    return scores
