"""Names near a misspelt one, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, upper and lower case alike, or None if nothing comes close."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    # Only the head of a very long name is compared: difflib takes time with the product of the lengths.
    matches = difflib.get_close_matches(name[:80].lower(), by_lower, n=1)
    return by_lower[matches[0]] if matches else None


def nearest(name: str, known: Iterable[str]) -> str:
    """ " (did you mean 'x'?)", or nothing, to be appended to a message."""
    match = nearest_name(name, known)
    return f" (did you mean '{match}'?)" if match is not None else ""
