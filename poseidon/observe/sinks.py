"""The sinks that a user asks for, besides the run folder. What is not installed is said before anything is computed."""

from __future__ import annotations

from poseidon.observe.options import ObserveOptions
from poseidon.observe.sink import Sink
from poseidon.solver import Solver


def open_sinks(options: ObserveOptions, solver: Solver) -> list[Sink]:
    """All of them, each ready to be told."""
    return []
