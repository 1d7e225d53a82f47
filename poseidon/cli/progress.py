"""A training run on a terminal: a live line with rate, time left, loss and lr; tests and snapshots scroll above it."""

from __future__ import annotations

import sys
import time
from types import TracebackType

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from poseidon.solver import events
from poseidon.solver.log import output_text
from poseidon.solver.log_line import number
from poseidon.spec import caffe_pb2

# Reading the loss waits for the device, so it is not read more often than a person can see.
_REFRESH_S = 0.1


class ProgressDisplay:
    """A solver's listener; use as a context manager."""

    def __init__(self, param: caffe_pb2.SolverParameter, device: torch.device) -> None:
        console = Console(file=sys.stderr)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[facts]}"),
            console=console,
        )
        self._task = self._progress.add_task("training", total=param.max_iter, rate="", facts="")
        self._device = device
        self._shown = self._started = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, place: str, text: str) -> None:
        """What the command itself has to tell, in passing."""
        self._progress.console.print(text, style="dim", highlight=False)

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.NetBuilt) and event.test_index is None:
            num_params = sum(entry.value.numel() for entry in event.net.learnable)
            self.say("", f"net {event.net.name!r}: {num_params:,} parameters, on {self._device}")
        elif isinstance(event, events.Restored):
            self._progress.update(self._task, completed=event.iteration)
        elif isinstance(event, events.IterationDone):
            self._iteration(event)
        elif isinstance(event, events.TestDone):
            scores = ", ".join(output_text(output) for output in event.outputs)
            self._progress.console.print(f"iteration {event.iteration}: test net #{event.net_index}: {scores}")
        elif isinstance(event, events.SnapshotWritten):
            self.say("", f"snapshot: {event.state}")

    def _iteration(self, event: events.IterationDone) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first, self._started = event.iteration, now
        done = event.iteration + 1
        last = self._progress.tasks[0].total == done
        if now - self._shown < _REFRESH_S and not last:
            return
        self._shown = now
        elapsed = now - self._started
        rate = f"{number((event.iteration - self._first) / elapsed)} it/s" if elapsed > 0 else ""
        facts = f"loss {float(event.smoothed_loss):.4f}  lr {number(event.rate)}"
        self._progress.update(self._task, completed=done, rate=rate, facts=facts)
