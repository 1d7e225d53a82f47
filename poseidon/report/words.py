"""Figures as the report writes them: about three digits, and a unit."""

from __future__ import annotations

import datetime

from poseidon.tools.net_notes import count_text

__all__ = ["bytes_text", "count_text", "figure", "percent", "seconds_text", "when"]


def figure(value: float, digits: int = 3) -> str:
    """`0.0123`, `12.3`, `1230`; never in powers of ten unless it is very small."""
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.2e}"
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{float(f'{value:.{digits}g}'):.12g}"


def seconds_text(seconds: float) -> str:
    """`42 µs`, `1.23 ms`, `42.1 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds >= 3600:
        return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60} min"
    if seconds >= 120:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{figure(seconds / size)} {unit}"
    return "0 s" if seconds <= 0 else f"{figure(seconds * 1e6)} µs"


def bytes_text(number: float) -> str:
    """`1.23 MB`: powers of 1000, as networks count."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{figure(number / size)} {unit}"
    return f"{number:.0f} B"


def percent(share: float) -> str:
    """`93 %`; near the ends with a decimal, so that 99.7 does not read as all."""
    value = 100 * share
    return f"{value:.1f} %" if 99 <= value < 100 or 0 < value < 1 else f"{value:.0f} %"


def when(unix_seconds: float) -> str:
    """A moment, in UTC; empty for what is none."""
    try:
        moment = datetime.datetime.fromtimestamp(unix_seconds, tz=datetime.timezone.utc)
    except (OverflowError, OSError, ValueError):
        return ""
    return moment.strftime("%Y-%m-%d %H:%M UTC")
