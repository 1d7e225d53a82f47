"""Spare memory: what the C library keeps of memory that was freed, given back to the system.

Measuring a net runs it as training never does again, layer by layer with every blob alive. The allocator keeps what
that took, in pieces that training's own requests hardly fit: GoogLeNet's workers held twice what they used.
"""

from __future__ import annotations

import ctypes
from functools import cache


def give_back() -> None:
    """Does nothing where the C library has no such call (it is glibc's)."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> ctypes._NamedFuncPointer | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # macOS, musl; Windows cannot open itself
        return None
