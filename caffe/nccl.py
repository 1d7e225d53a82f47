"""caffe.NCCL: the name is there, the way is another.

In pycaffe a script starts one process per GPU and hands each an NCCL object. Here `poseidon train --workers N` (or
torchrun, or srun) starts the workers, plans what travels how, and needs no change of the net or solver.
"""

from __future__ import annotations

from typing import NoReturn

from caffe.failures import CallError

_INSTEAD = "start the workers with `poseidon train --solver FILE --workers N`, which needs no script"


def has_nccl() -> bool:
    """False: processes that call NCCL by hand are not how workers are joined here."""
    return False


class NCCL:
    """Says what to use instead."""

    def __init__(self, *_: object) -> None:
        self.new_uid()

    @staticmethod
    def new_uid() -> NoReturn:
        raise CallError(f"caffe.NCCL is not available (caffe.has_nccl() is False); {_INSTEAD}")
