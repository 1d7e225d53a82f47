"""A run folder as a sink: `run.json` at the beginning and the end, `metrics.jsonl` in between."""

from __future__ import annotations

from pathlib import Path

from poseidon.errors import RecordError
from poseidon.record import Facts, Metric, MetricsWriter, write_facts
from poseidon.record.reading import read_facts
from poseidon.record.writing import FACTS_FILE


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
        for old in self._folder.glob("trace-*.jsonl"):
            old.unlink()  # ranks may be fewer now, and clocks have been set anew
        self._metrics = MetricsWriter(self._folder, anew=not is_there)

    def begin(self, facts: Facts) -> None:
        write_facts(self._folder, facts)

    def write(self, metric: Metric) -> None:
        self._metrics.write(metric)

    def end(self, facts: Facts) -> None:
        self._metrics.close()
        write_facts(self._folder, facts)
