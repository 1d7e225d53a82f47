"""How much a file may ask for. Far above what real nets need, and low enough that a hostile file cannot fill the
machine."""

from __future__ import annotations

MAX_BINARY_BYTES = 2**31 - 1
"""Protobuf's own end."""

MAX_TEXT_BYTES = 256 << 20
"""Of prototxt, which is read at a few megabytes a second."""

MAX_MESSAGES = 200_000
"""Messages in repeated fields, at all depths. An empty layer takes 3 bytes in a file and hundreds in memory."""

MAX_FIELDS = 1_000_000
"""Fields of nets and layers, all together; the values in a blob are one field."""
