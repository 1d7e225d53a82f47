"""What moves bytes between workers: over the network (c10d), inside one process, with faults on purpose."""

from __future__ import annotations

from poseidon.transport.base import Peer, Transport, Work

__all__ = ["Peer", "Transport", "Work"]
