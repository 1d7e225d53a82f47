"""Flags of what is recorded of a training run, and who is told how it goes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from poseidon.cli.command import Flags, positive_number, whole_number
from poseidon.errors import UsageError
from poseidon.observe.options import ObserveOptions
from poseidon.run.rendezvous import num_restarts

# Flags that change what is computed, or how; the others say how it is started and shown.
_OF_INTEREST = (
    *("solver", "snapshot", "weights", "freeze", "renew", "gpu", "level", "stage", "dtype", "threads"),
    *("workers", "hosts", "hostfile", "interface", "bandwidth", "latency", "bandwidth_limit"),
    *("scheme", "schemes", "reduce", "pattern", "one_sided", "wire", "sync_bn", "data_in_memory"),
    *("staleness", "consistency", "servers", "balance"),
)


def observe_flags(flags: Flags) -> None:
    """What `train` takes to leave something behind that can be looked at."""
    flags.flag("record", metavar="FOLDER", help="keep a record there, for `poseidon report` and `poseidon trace`")
    flags.flag("trace", metavar="FOLDER", help="the same, with the timeline of every iteration")
    flags.flag("tensorboard", default="", metavar="FOLDER", help="write event files there, for TensorBoard")
    flags.flag("histograms", type=positive_number, default=0, metavar="N", help="of parameters and gradients, every N")
    flags.flag("metrics-port", type=whole_number, metavar="PORT", help="serve figures to Prometheus there (0: any)")
    flags.flag("metrics-address", default="", metavar="IP", help="at this address of rank 0's (its job's interface)")
    flags.flag("wandb", default="", metavar="PROJECT", help="tell Weights & Biases, if it is installed")


def observe_options(found: argparse.Namespace, environ: Mapping[str, str]) -> ObserveOptions:
    """What the flags ask for; raises if that makes no sense."""
    if found.record and found.trace and found.record != found.trace:
        raise UsageError("--record and --trace name one folder, the trace is part of the record; give one of them")
    given = {name: getattr(found, name, None) for name in _OF_INTEREST}
    return ObserveOptions(
        folder=found.trace or found.record or "",
        all_iterations=bool(found.trace),
        tensorboard=found.tensorboard,
        histograms=found.histograms,
        metrics_port=found.metrics_port,
        metrics_address=found.metrics_address,
        wandb=found.wandb,
        continues=bool(found.snapshot) or num_restarts(environ) > 0,
        command=(found.program, *found.words),
        configuration={f"--{name.replace('_', '-')}": str(value) for name, value in given.items() if value},
    )
