"""Checkpoints: a Parallel's state_dict has the keys of the bare model, and takes DistributedDataParallel's too.

What lossy wires still owe (narrow.py, power.py) is this worker's own. It is there, under `poseidon_wire`, only where
there is any; a state that was saved by another rank, or among another number of workers, begins anew.
"""

from __future__ import annotations

from typing import Any

from torch import nn

WIRE_KEY = "poseidon_wire"
_INNER = "module."


def keep_bare_names(parallel: Any) -> None:
    """Puts hooks on a Parallel that take `module.` out of keys, and put it in again when they are loaded."""
    parallel._register_state_dict_hook(_on_save)
    parallel.register_state_dict_pre_hook(_before_save)
    parallel.module.register_state_dict_pre_hook(_Waiting(parallel._replica))
    parallel.register_load_state_dict_pre_hook(_before_load)


class _Waiting:
    """Waits before a state is read; a copy of the model has nothing to wait for."""

    def __init__(self, replica: Any) -> None:
        self._replica = replica

    def __call__(self, *args: Any) -> None:
        if self._replica is not None:
            self._replica.wait()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Waiting:
        return _Waiting(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Waiting, (None,)


def _before_save(parallel: Any, prefix: str, keep_vars: bool) -> None:
    parallel.wait()


def _on_save(parallel: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    _rename(state, prefix + _INNER, prefix)
    _rename(getattr(state, "_metadata", {}), prefix + _INNER, prefix)
    replica = parallel._replica
    owed = replica.wire_state() if replica is not None else {}
    if owed:
        place = {"rank": replica.transport.rank, "size": replica.transport.size}
        state[prefix + WIRE_KEY] = {**place, "owed": {unit: dict(own) for unit, own in owed.items()}}


def _before_load(parallel: Any, state: dict[str, Any], prefix: str, *others: Any) -> None:
    parallel.wait()
    saved = state.pop(prefix + WIRE_KEY, None)
    replica = parallel._replica
    if replica is not None and saved is not None:
        is_ours = (saved["rank"], saved["size"]) == (replica.transport.rank, replica.transport.size)
        replica.restore_wire_state(saved["owed"] if is_ours else {})
    own = [key for key in state if key.startswith(prefix)]
    is_ddp = bool(own) and all(key.startswith(prefix + _INNER) for key in own)
    if not is_ddp or _has_module_child(parallel.module):
        _rename(state, prefix, prefix + _INNER)


def _has_module_child(model: nn.Module) -> bool:
    """Whether `module.` may be the bare model's own."""
    return "module" in model._modules


def _rename(state: dict[str, Any], old: str, new: str) -> None:
    for key in [key for key in state if key.startswith(old)]:
        state[new + key.removeprefix(old)] = state.pop(key)
