"""Stuck: which worker waits for whom, when an exchange takes too long; with what all their threads do just then.

Workers start exchanges in one order, so counting tells it: whoever waits for a unit waits for those who have not
started as many Sends as that takes. If all have, the bytes are on their way, and the network is what is slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poseidon.transport.base import Peer
from poseidon.transport.vitals import Vitals


def longest_wait_s(vitals: Mapping[int, Vitals]) -> float:
    return max((entry.waited_s for entry in vitals.values() if entry.waits_for), default=0.0)


def waited_for(rank: int, vitals: Mapping[int, Vitals]) -> list[int]:
    """The ranks that a waiting worker waits for; none if the bytes are on their way."""
    own = vitals[rank]
    if not own.num_needed:  # a meeting: all come to it in the same order
        met = own.figures.get("met", 0.0)
        return [other for other, entry in vitals.items() if entry.figures.get("met", 0.0) < met]
    needed = own.num_needed
    return [other for other, entry in vitals.items() if other != rank and entry.num_sent < needed]


def waits_text(peers: Sequence[Peer], vitals: Mapping[int, Vitals]) -> str:
    """One line for each worker: where it stands, and whom it waits for."""
    return "\n".join(_line(peers[rank], vitals) for rank in vitals)


def _line(peer: Peer, vitals: Mapping[int, Vitals]) -> str:
    own = vitals[peer.rank]
    where = f"{peer}: clock {own.clock}"
    if not own.waits_for:
        return f"{where}, computes or reads data; its last unit was {own.unit or 'none yet'}"
    others = waited_for(peer.rank, vitals)
    whom = f"rank {', '.join(map(str, others))}" if others else "the network: all workers have sent their part"
    return f"{where}, waits for {own.waits_for} since {own.waited_s:.0f} s, for {whom}"


def report(peers: Sequence[Peer], vitals: Mapping[int, Vitals], stacks: Mapping[int, str]) -> str:
    """The whole text."""
    parts = [f"an exchange has taken {longest_wait_s(vitals):.0f} s", "", waits_text(peers, vitals)]
    for rank, text in stacks.items():
        parts += ["", f"---- what the threads of {peers[rank]} do", text]
    silent = [str(peers[rank]) for rank in range(len(peers)) if rank not in stacks]
    if silent:
        parts += ["", f"no answer from {', '.join(silent)}"]
    return "\n".join(parts) + "\n"
