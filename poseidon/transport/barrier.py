"""Barrier: everybody tells everybody, so that whoever is missing can be named.

One byte between each two workers: P·(P−1) messages, made for a few dozen workers and rare use. The k-th call of one
worker meets the k-th call of the others; a call that timed out counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from poseidon.errors import TransportTimeout
from poseidon.transport.base import OWN_TAGS, Peer, Work, names_of

BARRIER_TAG = OWN_TAGS

Post = Callable[[Tensor, int, int], Work]


def barrier(peers: Sequence[Peer], own: int, post_send: Post, post_recv: Post, timeout_s: float) -> None:
    """`own` is this worker's place among `peers`; the two functions start messages that nobody counts."""
    deadline = time.monotonic() + timeout_s
    others = [place for place in range(len(peers)) if place != own]
    receives = [post_recv(torch.empty(1, dtype=torch.uint8), place, BARRIER_TAG) for place in others]
    sends = [post_send(torch.zeros(1, dtype=torch.uint8), place, BARRIER_TAG) for place in others]
    missing = [place for place, work in zip(others, receives, strict=True) if not _arrives(work, deadline)]
    if missing:
        ranks = tuple(peers[place].rank for place in missing)
        raise TransportTimeout(
            f"barrier: after {timeout_s:g} s still waiting for {names_of(peers, missing)}, "
            "who are alive but have not come to it",
            ranks,
        )
    for work in sends:
        work.wait(max(0.0, deadline - time.monotonic()))


def _arrives(work: Work, deadline: float) -> bool:
    try:
        work.wait(max(0.0, deadline - time.monotonic()))
    except TransportTimeout:
        return False
    return True
