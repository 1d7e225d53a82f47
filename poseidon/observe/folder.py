"""A run folder as a sink: `run.json` at the beginning and the end, `metrics.jsonl` in between.

A run that goes on in its folder adds to the metrics. Traces it writes anew: ranks may be fewer now, and clocks are
compared anew. Those of the part before are kept in a folder of their own, `part-1`, `part-2`, …, with its `run.json`:
each is read like a run.
"""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

from poseidon.errors import RecordError
from poseidon.record import Facts, Metric, MetricsWriter, write_facts
from poseidon.record.reading import read_facts
from poseidon.record.writing import FACTS_FILE, unwritable


class RunFolder:
    """`continues`: the run goes on from a snapshot, or after a failure; then the folder may have its first part."""

    def __init__(self, folder: str | Path, *, continues: bool) -> None:
        self._folder = Path(folder)
        self.line = f"record    {folder}"
        is_there = (self._folder / FACTS_FILE).exists()
        if is_there and not continues:
            raise RecordError(
                f"{folder}: holds the record of another run; name another folder, or remove this one. (A run that is "
                "continued with --snapshot goes on in its folder.)"
            )
        self.started = read_facts(self._folder).started if is_there else None
        kept = self._keep_traces()
        if kept is not None:
            self.line += f"; traces of the part before: {kept}"
        self._metrics = MetricsWriter(self._folder, anew=not is_there)

    def _keep_traces(self) -> Path | None:
        """Where the part before has its traces from now on; None if it left none."""
        traces = sorted(self._folder.glob("trace-*.jsonl"))
        if not traces:
            return None
        part = next(path for number in count(1) if not (path := self._folder / f"part-{number}").exists())
        try:
            part.mkdir()
            if (self._folder / FACTS_FILE).exists():
                shutil.copyfile(self._folder / FACTS_FILE, part / FACTS_FILE)
            for trace in traces:
                trace.rename(part / trace.name)
        except OSError as problem:
            raise unwritable(part, problem) from None
        return part

    def begin(self, facts: Facts) -> None:
        write_facts(self._folder, facts)

    def write(self, metric: Metric) -> None:
        self._metrics.write(metric)

    def end(self, facts: Facts) -> None:
        self._metrics.close()
        write_facts(self._folder, facts)
