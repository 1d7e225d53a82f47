"""Where the log of a command that runs nets goes: standard error, as glog writes it there."""

from __future__ import annotations

from poseidon.cli.plain_log import PlainLog
from poseidon.solver import events
from poseidon.solver.log import lines_of


class CommandLog(PlainLog):
    """A log that also hears a solver's events."""

    def __call__(self, event: events.Event) -> None:
        self.write(lines_of(event))
