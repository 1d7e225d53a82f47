"""Flags whose value is a list of numbers."""

from __future__ import annotations

from poseidon.errors import UsageError


def numbers_of(text: str, flag: str) -> list[int]:
    """`256,256` as [256, 256]; nothing as []."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise UsageError(f"--{flag} is a list of numbers, separated by commas, got {text!r}")
    return [int(word) for word in words]
