"""Tensors of a snapshot's continuation that are too large for JSON, in PREFIX_iter_N.poseidon.safetensors.

In what has to go on, a tensor may stand anywhere. On its way to the disk it leaves a note in the sidecar, the name it
has in the file beside; on the way back the note becomes an `Attached`, which is read when somebody wants it: of what
all workers have left, each takes its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from poseidon.errors import SnapshotError

ENDING = ".poseidon.safetensors"
_NOTE = "attached tensor"


@dataclass(frozen=True, slots=True)
class Attached:
    """A tensor in a file beside the sidecar."""

    path: Path
    name: str

    def read(self) -> Tensor:
        try:
            with safetensors.safe_open(self.path, framework="pt") as file:
                found: Tensor = file.get_tensor(self.name)
                return found
        except (OSError, safetensors.SafetensorError) as problem:
            raise SnapshotError(f"{self.path}: tensor {self.name!r} cannot be read: {problem}") from None


def taken_out(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """The value with notes instead of tensors, and the tensors by name."""
    tensors: dict[str, Tensor] = {}

    def noted(part: Any) -> Any:
        if isinstance(part, Tensor):
            name = f"{len(tensors)}"
            tensors[name] = part.detach().cpu().contiguous()
            return {_NOTE: name}
        if isinstance(part, Mapping):
            return {key: noted(inner) for key, inner in part.items()}
        return [noted(inner) for inner in part] if isinstance(part, (list, tuple)) else part

    return noted(value), tensors


def put_back(value: Any, path: Path) -> Any:
    """The value again, tensors of the file as `Attached`."""
    if isinstance(value, dict):
        if value.keys() == {_NOTE}:
            return Attached(path, str(value[_NOTE]))
        return {key: put_back(inner, path) for key, inner in value.items()}
    return [put_back(inner, path) for inner in value] if isinstance(value, list) else value


def write_attached(tensors: Mapping[str, Tensor], path: Path) -> None:
    safetensors.torch.save_file(dict(tensors), path)
