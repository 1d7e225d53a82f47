"""Messages between the launcher and its agents: one JSON object a line, over the two pipes of an ssh connection.

What comes from the other side is checked before it is used: a line has at most `MAX_LINE_BYTES`, is an object, and has
a `kind`. Anything else is no message: somebody's greeting in a shell's start-up file, say; it is handed on as text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MAX_LINE_BYTES = 1 << 24

Message = dict[str, Any]


def packed(kind: str, **facts: Any) -> bytes:
    return json.dumps({"kind": kind, **facts}).encode() + b"\n"


@dataclass(slots=True)
class Inbox:
    """Bytes in, messages out; what is no message comes out as {"kind": "text", "text": …}."""

    unread: bytes = b""

    def take(self, data: bytes) -> list[Message]:
        *lines, self.unread = (self.unread + data).split(b"\n")
        if len(self.unread) > MAX_LINE_BYTES:
            lines, self.unread = [*lines, self.unread[:1000]], b""
        return [message_of(line) for line in lines if line.strip()]


def message_of(line: bytes) -> Message:
    try:
        found = json.loads(line) if line.startswith(b"{") else None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and isinstance(found.get("kind"), str):
        return found
    return {"kind": "text", "text": line.decode(errors="replace")}
