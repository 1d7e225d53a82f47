"""The sinks that a user asks for, besides the run folder. What is not installed is said before anything is computed."""

from __future__ import annotations

from poseidon.observe.options import ObserveOptions
from poseidon.observe.prometheus import Prometheus
from poseidon.observe.sink import Sink
from poseidon.observe.tensorboard import TensorBoard
from poseidon.observe.wandb import Wandb
from poseidon.solver import Solver

LOOPBACK = "127.0.0.1"


def open_sinks(options: ObserveOptions, solver: Solver) -> list[Sink]:
    """All of them, each ready to be told."""
    sinks: list[Sink] = []
    if options.wandb:
        sinks.append(Wandb(options.wandb))
    if options.metrics_port is not None:
        sinks.append(Prometheus(options.metrics_address or LOOPBACK, options.metrics_port))
    if options.tensorboard:
        sinks.append(TensorBoard(options.tensorboard, solver, options.histograms))
    return sinks
