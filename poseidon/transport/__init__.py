"""What moves bytes between workers: over the network (c10d), inside one process, with faults on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poseidon.transport.base import Peer, Transport, Work

__all__ = ["Peer", "Transport", "Work"]


def __getattr__(name: str) -> Any:
    """Loads torch only when bytes are to be moved: launching and diagnosing need addresses and handshakes alone."""
    if name in __all__:
        from poseidon.transport import base

        return getattr(base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
