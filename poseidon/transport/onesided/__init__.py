"""One-sided communication: memory that others write to, and notifications that tell it has happened."""

from __future__ import annotations

from poseidon.transport.onesided.base import Endpoint, Note, Spot

__all__ = ["Endpoint", "Note", "Spot"]
