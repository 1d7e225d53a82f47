"""Losses and outputs as CSV in PMLS-Caffe's form, for plots: `PREFIX.netoutputs`, written by rank 0.

    Iteration,time,loss,accuracy,           one block for the train net: displayed iterations
    0,0.52,2.3026,0.1,                      time: seconds since training began
    …
                                            an empty line after each block
    Iteration,time,loss,accuracy,           one block per test net: its tests. The loss is the weighted sum of the
    …                                       losses among the outputs, as in the train net

All values are means over workers. An output of several values has a column for each: `prob[0]`, `prob[1]`, … (PMLS
wrote its name once). Rows are kept and the file is written anew at every test and snapshot, and at the end; a run that
goes on from a snapshot begins a new file.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from poseidon.errors import UsageError
from poseidon.solver import events

ENDING = ".netoutputs"
_MOMENTS = (events.TestDone, events.SnapshotWritten, events.SolvingDone)


@dataclass(slots=True)
class _Block:
    header: str = ""
    rows: list[str] = field(default_factory=list)

    def add(self, iteration: int, elapsed_s: float, loss: float, outputs: Sequence[events.OutputValue]) -> None:
        self.header = self.header or _header(outputs)
        values = (f"{value:.9g}," for value in (loss, *(output.value for output in outputs)))
        self.rows.append(f"{iteration},{elapsed_s:.6g},{''.join(values)}")

    def text(self) -> str:
        return "".join(f"{line}\n" for line in (self.header or _header([]), *self.rows, ""))


class NetOutputs:
    """A solver's listener."""

    def __init__(self, prefix: str, num_test_nets: int, now: Callable[[], float] = time.perf_counter) -> None:
        self.path = Path(f"{prefix}{ENDING}")
        self._train = _Block()
        self._tests = [_Block() for _ in range(num_test_nets)]
        self._now = now
        self._began = now()
        self.write()  # a place that cannot be written to is better known now than after a day of training

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.IterationShown):
            self._train.add(event.iteration, self._now() - self._began, event.loss, event.outputs)
        elif isinstance(event, events.TestDone):
            loss = sum(output.loss_weight * output.value for output in event.outputs if output.loss_weight)
            given = event.loss if event.loss is not None else loss
            self._tests[event.net_index].add(event.iteration, self._now() - self._began, given, event.outputs)
        if isinstance(event, _MOMENTS):
            self.write()

    def write(self) -> None:
        """Writes the file anew; a reader sees the old one or the new one."""
        text = "".join(block.text() for block in (self._train, *self._tests))
        beside = self.path.with_name(f"{self.path.name}.part")
        try:
            beside.write_text(text)
            os.replace(beside, self.path)
        except OSError as problem:
            raise UsageError(f"{self.path}: cannot write the net outputs: {problem}") from None


def _header(outputs: Sequence[events.OutputValue]) -> str:
    sizes = Counter(output.blob for output in outputs)
    seen: Counter[str] = Counter()
    names = []
    for output in outputs:
        names.append(output.blob if sizes[output.blob] == 1 else f"{output.blob}[{seen[output.blob]}]")
        seen[output.blob] += 1
    return "".join(f"{name}," for name in ("Iteration", "time", "loss", *names))
