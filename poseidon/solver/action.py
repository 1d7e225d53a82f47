"""What somebody outside asks of a running solver, for instance through a signal."""

from __future__ import annotations

import enum


class Action(enum.Enum):
    """Asked for after every iteration and before every test batch."""

    NONE = enum.auto()
    SNAPSHOT = enum.auto()  # write one now and go on
    STOP = enum.auto()  # finish this iteration, snapshot if the settings say so, and end
    YIELD = enum.auto()  # the same, with a snapshot in any case: others will go on from there


def no_action() -> Action:
    return Action.NONE
