"""safetensors: named tensors, and notes in the header. Tensors named a.b.c are shown as `c` of part a.b."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import safetensors
import torch

from poseidon.errors import DataError
from poseidon.inspect.contents import Array, Fact, Findings, Part

_MAX_NOTE_CHARS = 200
_BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


def read_safetensors(path: str, num_records: int, stack: ExitStack) -> Findings:
    try:
        file = stack.enter_context(safetensors.safe_open(path, framework="pt"))
        names = list(file.keys())
        notes = file.metadata() or {}
        arrays = {name: _array(file, name, path) for name in names}
    except (safetensors.SafetensorError, OSError, ValueError, TypeError) as problem:
        raise DataError(f"{path}: not a readable safetensors file: {problem}") from None
    parts: dict[str, list[Array]] = {}
    for name, array in arrays.items():
        parts.setdefault(name.rpartition(".")[0], []).append(array)
    facts: list[Fact] = [("tensors", len(names))]
    facts += [(f"note {key}"[:_MAX_NOTE_CHARS], str(value)[:_MAX_NOTE_CHARS]) for key, value in sorted(notes.items())]
    return Findings(tuple(facts), tuple(Part(name, "", "", tuple(found)) for name, found in parts.items()))


def _array(file: Any, name: str, path: str) -> Array:
    part = file.get_slice(name)
    shape, code = tuple(part.get_shape()), str(part.get_dtype())
    bits = _BITS.get(code) or int("".join(filter(str.isdigit, code.split("_")[0])) or 8)
    num_bytes = int(np.prod(shape, dtype=np.float64)) * bits // 8
    return Array(name.rpartition(".")[2], shape, code, num_bytes, partial(_values, file, name, path))


def _values(file: Any, name: str, path: str) -> np.ndarray:
    try:
        tensor: torch.Tensor = file.get_tensor(name)
        if tensor.dtype in (torch.bfloat16, torch.float16):
            tensor = tensor.float()
        return tensor.numpy() if tensor.dtype.itemsize > 1 or not tensor.is_floating_point() else tensor.float().numpy()
    except (safetensors.SafetensorError, OSError, RuntimeError, TypeError, ValueError, KeyError) as problem:
        raise DataError(f"{path}: tensor {name!r} cannot be read: {problem}") from None
