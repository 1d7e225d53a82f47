"""Gradients on their way: exchanges, and the scheduler that runs them beside the net."""

from __future__ import annotations

from poseidon.comm.exchange import Exchange
from poseidon.comm.part import Apply, Member, Part, Region
from poseidon.comm.scheduler import Scheduler
from poseidon.comm.taps import Taps
from poseidon.comm.wiring import make_exchanges

__all__ = ["Apply", "Exchange", "Member", "Part", "Region", "Scheduler", "Taps", "make_exchanges"]
