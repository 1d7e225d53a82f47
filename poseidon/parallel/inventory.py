"""Inventory: what a model consisted of when it was wrapped. Before every forward pass it is asked whether that still
holds, so it remembers who holds what instead of walking through the model again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from operator import is_
from typing import Any

from torch import nn


class Inventory:
    """Parameters, and the modules that hold them."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._types = [(parameter.dtype, parameter.device) for parameter in self._parameters]
        held = [(vars(module), kind) for module in model.modules() for kind in ("_parameters", "_modules")]
        self._held = [(own, kind, tuple(dict.values(own[kind]))) for own, kind in held]
        self._flags, self._fingerprint = b"", 0

    def holds(self) -> bool:
        """Whether the model has the same modules with the same parameters, of the same types, on the same devices."""
        # By dict's own method: this is not the moment to wait for anything (holdings.py).
        return all(_are_same(dict.values(own[kind]), before) for own, kind, before in self._held) and all(
            parameter.dtype == dtype and parameter.device == device
            for parameter, (dtype, device) in zip(self._parameters, self._types, strict=True)
        )

    def fingerprint(self) -> int:
        """Of which parameters learn; the same number in every process."""
        flags = bytes([parameter.requires_grad for parameter in self._parameters])
        if flags != self._flags:
            self._flags = flags
            self._fingerprint = int.from_bytes(hashlib.blake2b(flags, digest_size=7).digest(), "little")
        return self._fingerprint


def _are_same(found: Iterable[Any], before: tuple[Any, ...]) -> bool:
    now = tuple(found)
    return len(now) == len(before) and all(map(is_, now, before))
