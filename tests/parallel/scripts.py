"""Runs a script as one of several workers, in a worker process of the tests'."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path

import torch.distributed as dist

from tests.worker_process import Seat

ROOT = Path(__file__).parents[2]


def run_script(seat: Seat, path: str, arguments: list[str], port: int) -> str:
    """What the script prints. Its environment is torchrun's."""
    told = {"RANK": seat.rank, "WORLD_SIZE": seat.size, "LOCAL_RANK": seat.rank, "LOCAL_WORLD_SIZE": seat.size}
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "tests"}
    before, words = dict(os.environ), sys.argv
    os.environ.update({key: str(value) for key, value in told.items()})
    sys.argv = [path, *arguments]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(ROOT / path), run_name="__main__")
    finally:
        sys.argv = words
        os.environ.clear()
        os.environ.update(before)
        if dist.is_initialized():
            dist.destroy_process_group()
    return printed.getvalue()
