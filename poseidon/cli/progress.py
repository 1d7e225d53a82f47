"""A training run on a terminal: a live line with rate, time left, loss and lr; tests and snapshots scroll above it, and
curves, workers and the wire are below (`panel.py`).

iteration 2000  test  accuracy 0.9812  loss 0.0566
training ━━━━━━━╸━━━━━━━━━━━━━━━  2310/10000  118 it/s  01:05  loss 0.0324  lr 0.008461
loss      ▇▆▅▄▃▃▂▂▁▁▁▁ 0.0324   accuracy ▁▄▆▇██ 0.9812   7,550 images/s
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from poseidon.cli.devices import device_text
from poseidon.cli.panel import Panel
from poseidon.cli.signals import SignalRequests
from poseidon.cli.terminal import console
from poseidon.log_line import number
from poseidon.net import Net
from poseidon.net.graph import Node
from poseidon.run.shards import sharded_layers
from poseidon.run.view import JobView
from poseidon.solver import events
from poseidon.spec import caffe_pb2

# Reading the loss waits for the device, so it is not read more often than a person can see.
_REFRESH_S = 0.1
# Drawing takes milliseconds, of a processor that has better things to do.
_REFRESHES_PER_S = 1  # each takes 3 ms
# A bar needs some room beside the numbers; on a narrower terminal the most telling numbers are all.
_LEAST_WIDTH_WITH_BAR = 72
# An output blob of a thousand values would push everything else off the screen.
_MOST_VALUES_SHOWN = 6


class _WithPanel(Progress):
    """A progress bar with a panel below."""

    def __init__(self, panel: Panel, *columns: ProgressColumn, **options: Any) -> None:
        self._panel = panel
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield self._panel


class StateColumn(ProgressColumn):
    """What is being done. Ctrl-C is answered here at once, although the iteration it falls into goes on."""

    def __init__(self, requests: SignalRequests) -> None:
        super().__init__()
        self._requests = requests

    def render(self, task: Task) -> Text:
        is_stopping = self._requests.is_stopping and not task.fields["ended"]
        return Text(f"{'stopping' if is_stopping else task.description:8}", style="bold")


class RateColumn(ProgressColumn):
    """Iterations per second, or seconds per iteration, in three digits."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(rate_text(speed) if speed else "", style="progress.data.speed")


def rate_text(per_s: float) -> str:
    value, unit = (per_s, "it/s") if per_s >= 1 else (1 / per_s, "s/it")
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


class ProgressDisplay:
    """A solver's listener; use as a context manager. When it ends it tells where the weights are.

    `flags` are those that the same run would be started with again.
    """

    def __init__(
        self, param: caffe_pb2.SolverParameter, flags: str, device: torch.device, requests: SignalRequests
    ) -> None:
        self._param, self._flags, self._device = param, flags, device
        self._requests = requests
        self._console = console()
        self._panel = Panel()
        self._progress = _WithPanel(
            self._panel, *self._columns(), console=self._console, expand=True, refresh_per_second=_REFRESHES_PER_S
        )
        self._task = self._progress.add_task("building", total=max(param.max_iter, 0), facts="", ended=False)
        self._began = self._shown = time.monotonic()
        self._latest: events.IterationDone | None = None
        self._snapshot: events.SnapshotWritten | None = None
        self._finite = True

    def _columns(self) -> list[ProgressColumn]:
        is_wide = self._console.width >= _LEAST_WIDTH_WITH_BAR
        whole = Column(no_wrap=True)
        return [
            StateColumn(self._requests),
            *([BarColumn(bar_width=None)] if is_wide else []),
            MofNCompleteColumn(table_column=whole),
            *([RateColumn(table_column=whole)] if is_wide else []),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=whole),
            TextColumn("{task.fields[facts]}", markup=False, table_column=whole),
        ]

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Leaves the terminal as others expect it."""
        self._progress.stop()

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.IterationDone):
            self._iteration(event)
        elif isinstance(event, events.NetBuilt):
            self._net_built(event)
        elif isinstance(event, events.Restored):
            self._restored(event)
        elif isinstance(event, events.SolvingStarted):
            self._began = time.monotonic()
            self._describe("training")
        elif isinstance(event, events.TestStarted):
            self._describe("testing")
        elif isinstance(event, events.TestDone | events.TestInterrupted):
            self._describe("training")
            if isinstance(event, events.TestDone):
                self._note_score(event)
                self._say(f"iteration {event.iteration}  {self._test_name(event)}  {outputs_text(event.outputs)}")
        elif isinstance(event, events.SnapshotWritten):
            self._snapshot = event
            self._say(f"iteration {event.iteration}  snapshot  {event.state}", style="dim")
        elif isinstance(event, events.SnapshotFailed):
            self._say(f"iteration {event.iteration}  no snapshot, training goes on: {event.problem}", style="bold red")
        elif isinstance(event, events.SolvingDone):
            self._done(event)

    def meet(self, view: JobView) -> None:
        """There are other workers; this is what can be seen of them."""
        self._panel.view = view
        if self._panel.per_iteration is not None:
            self._panel.per_iteration *= view.plan.cluster.num_workers

    def show(self, lines: Iterable[str]) -> None:
        """Lines that somebody else has to say, above the live one."""
        for line in lines:
            self._say(line)

    def _say(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style)

    def _describe(self, what: str) -> None:
        self._progress.update(self._task, description=what)

    # -- building ---------------------------------------------------------------------------------------------------
    def _net_built(self, event: events.NetBuilt) -> None:
        if event.test_index is None:
            self._note_samples(event.net)
            num_params = sum(entry.value.numel() for entry in event.net.learnable)
            self._say(f"net {event.net.name!r}: {num_params:,} parameters, on {device_text(self._device)}")

    def _note_samples(self, net: Net) -> None:
        layers = sharded_layers(net)
        sizes = {layer.batch_size for layer in layers}
        if len(sizes) == 1:
            self._panel.per_iteration = sizes.pop() * self._param.iter_size
            is_images = any(len(shape) == 4 for node in net.program.feeds for shape in _top_shapes(net, node))
            self._panel.unit_name = "images" if is_images else "samples"

    def _restored(self, event: events.Restored) -> None:
        # Only what is done from here on counts for the rate.
        self._progress.reset(self._task, completed=event.iteration)
        note = "" if event.exact else " (a snapshot of Caffe's: data begins anew)"
        self._say(f"going on from iteration {event.iteration} of {event.path}{note}")

    # -- running ----------------------------------------------------------------------------------------------------
    def _test_name(self, event: events.TestDone) -> str:
        return "test" if len(self._param.test_iter) == 1 else f"test net #{event.net_index}"

    def _note_score(self, event: events.TestDone) -> None:
        """The first output that is no loss: usually an accuracy."""
        found = next((output for output in event.outputs if not output.loss_weight), None)
        if found is not None and event.net_index == 0:
            self._panel.score_name = found.blob
            self._panel.score.add(found.value)

    def _iteration(self, event: events.IterationDone) -> None:
        self._latest = event
        now = time.monotonic()
        if now - self._shown >= _REFRESH_S:
            self._shown = now
            self._show_latest()

    def _show_latest(self) -> None:
        event = self._latest
        if event is None:
            return
        loss = float(event.smoothed_loss)
        self._panel.loss.add(loss)
        task = self._progress.tasks[0]
        self._panel.iterations_per_s = task.finished_speed or task.speed
        facts = f"loss {loss:<6.4g}  lr {event.rate:.4g}"
        self._progress.update(self._task, completed=event.iteration + 1, facts=facts)
        if self._finite and not math.isfinite(loss):
            self._finite = False
            self._say(
                f"iteration {event.iteration}  the loss is {loss}: training has gone astray; a lower base_lr, or "
                "clip_gradients, usually helps",
                style="bold red",
            )

    # -- the end ----------------------------------------------------------------------------------------------------
    def _done(self, event: events.SolvingDone) -> None:
        self._show_latest()
        self._progress.update(self._task, description="stopped" if event.stopped_early else "trained", ended=True)
        self._progress.stop()
        elapsed = time_text(time.monotonic() - self._began)
        if event.stopped_early:
            self._say(f"stopped at iteration {event.iteration} of {self._param.max_iter}, after {elapsed}")
        else:
            self._say(f"trained to iteration {event.iteration} in {elapsed}")
        if self._snapshot is None or self._snapshot.iteration != event.iteration:
            self._say("these weights were not saved: snapshot_after_train is false in the solver")
        else:
            self._say(f"weights: {self._snapshot.model}")
        if event.stopped_early and self._snapshot is not None:
            self._say(f"to go on: poseidon train {self._flags} --snapshot={self._snapshot.state}")


def _top_shapes(net: Net, node: Node) -> list[tuple[int, ...]]:
    return [net.blob_shapes[top] for top in node.tops]


def outputs_text(outputs: Iterable[events.OutputValue]) -> str:
    """`accuracy 0.98  loss 0.05`; of a blob with many values the first few."""
    parts = []
    for blob, group in itertools.groupby(outputs, lambda output: output.blob):
        values = [number(output.value) for output in group]
        rest = len(values) - _MOST_VALUES_SHOWN
        more = f" and {rest} more" if rest > 0 else ""
        parts.append(f"{blob} {' '.join(values[:_MOST_VALUES_SHOWN])}{more}")
    return "  ".join(parts)


def time_text(seconds: float) -> str:
    """Seconds below a minute with a decimal, else minutes or hours as on a clock."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, whole_seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole_seconds:02}" if hours else f"{minutes}:{whole_seconds:02}"
