"""Every message on the troubleshooting page is one that the code can print."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = [line[5:-1] for line in PAGE.splitlines() if line.startswith("### `") and line.endswith("`")]
GAP = "\0"


def literals() -> list[str]:
    """All texts in the code; what is filled in is a gap."""
    found = []
    for path in sorted((ROOT / "poseidon").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


LITERALS = literals()


def printed_by(message: str, literal: str) -> bool:
    """Whether the message's parts, without what differs, stand in the literal in their order; gaps may be longer."""
    at = 0
    for part in (part.strip() for part in message.split("…")):
        at = literal.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def test_there_are_messages():
    assert len(MESSAGES) > 25


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_has_it(message):
    assert any(printed_by(message, literal) for literal in LITERALS), message


def test_a_message_that_nobody_prints_would_be_noticed():
    assert not any(printed_by("the … of the whale is … too blue", literal) for literal in LITERALS)
