"""What a run leaves behind: a folder of JSON that the report, the timeline and scripts read. No torch, no pickle.

    run.json             what was run: command, configuration, net, cluster, plan; how it ended      (run.py)
    metrics.jsonl        what was shown: losses, rates, what each worker did, line by line           (metric.py)
    trace-<rank>.jsonl   when layers computed and gradients moved, as that rank saw it               (event.py)

All JSON is strict: what is no finite number is null. Files grow while a run goes on; a last line that is not whole yet
is left out by readers.
"""

from poseidon.record.event import COMPUTE_KINDS, KINDS, NETWORK_KINDS, Event, Trace
from poseidon.record.metric import PHASES, Metric, WorkerFigures
from poseidon.record.reading import read
from poseidon.record.run import FORMAT, RUN, SIMULATION, Facts, Run
from poseidon.record.writing import MetricsWriter, TraceWriter, write_facts

__all__ = [
    "COMPUTE_KINDS",
    "FORMAT",
    "KINDS",
    "NETWORK_KINDS",
    "PHASES",
    "RUN",
    "SIMULATION",
    "Event",
    "Facts",
    "Metric",
    "MetricsWriter",
    "Run",
    "Trace",
    "TraceWriter",
    "WorkerFigures",
    "read",
    "write_facts",
]
