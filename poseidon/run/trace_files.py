"""Trace files of all ranks in rank 0's run folder, also where hosts share no file system.

Every rank writes to the folder as its own host has it. When all is over, rank 0 looks which files it sees; the others
are sent over, in pieces.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import torch

from poseidon.record.writing import trace_file, unwritable
from poseidon.run.roundtable import Roundtable

PIECE_BYTES = 8 << 20

_log = logging.getLogger(__name__)


def bring_traces(table: Roundtable, folder: str | Path) -> None:
    """All workers call it together, after they have closed their files."""
    own = Path(folder) / trace_file(table.rank)
    labels = table.gather_texts(_label(own))
    seen = [_label(Path(folder) / trace_file(rank)) for rank in range(table.size)]
    missing = [rank for rank, label in enumerate(labels) if label and label != seen[rank]]
    # Rank 0's word: others may see what it does not.
    wanted = [int(rank) for rank in table.gather_texts(" ".join(map(str, missing)))[0].split()]
    for rank in wanted:
        if table.rank == 0:
            _take(table, rank, Path(folder) / trace_file(rank), labels[rank])
        elif table.rank == rank:
            _give(table, own)


def _label(path: Path) -> str:
    """Tells files of two runs apart: the first line has the time of the start to the microsecond."""
    try:
        with path.open("rb") as file:
            return f"{path.stat().st_size} {file.readline(1000).decode(errors='replace')}"
    except OSError:
        return ""


def _give(table: Roundtable, path: Path) -> None:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            table.tell(torch.frombuffer(bytearray(piece), dtype=torch.uint8), 0)


def _take(table: Roundtable, rank: int, path: Path, label: str) -> None:
    """All of it is taken even if it cannot be written: whoever sends it would wait for ever."""
    left = int(label.split()[0])
    with contextlib.ExitStack() as stack:
        file = None
        try:
            file = stack.enter_context(path.open("wb"))
        except OSError as problem:
            _log.warning("%s", unwritable(path, problem))
        while left:
            piece = torch.empty(min(left, PIECE_BYTES), dtype=torch.uint8)
            table.hear(piece, rank)
            left -= piece.numel()
            try:
                if file is not None:
                    file.write(piece.numpy().tobytes())
            except OSError as problem:
                _log.warning("%s", unwritable(path, problem))
                file = None
