"""The simulator: a plan played on a described cluster, message by message, in simulated time. No torch, no sockets.

    machines     a cluster, and what is not ideal about it: switches, jitter, stragglers
    description  the same as people write it
    waves, legs  a plan's Sends as the messages they consist of
    network      interfaces, switches and processors as queues; `flock`: the same for many nodes at once
    worker       computes, waits and starts Sends by the runtime's own rules (plan/turns.py)
    play         all of them together
    telling      what happened, as a run's record

`poseidon/plan/simulate.py` is the planner's quick look at one worker's link; this is the slow one.
"""

from __future__ import annotations

from poseidon.simulate.description import WORDS, machines_of, read_description
from poseidon.simulate.machines import Machines, Straggler
from poseidon.simulate.play import Manner, Played, play
from poseidon.simulate.telling import Teller, Told, write_record
from poseidon.simulate.worker import Happening

__all__ = [
    "WORDS",
    "Happening",
    "Machines",
    "Manner",
    "Played",
    "Straggler",
    "Teller",
    "Told",
    "machines_of",
    "play",
    "read_description",
    "write_record",
]
