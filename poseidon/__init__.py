"""Poseidon: Caffe and PyTorch networks, trained on the machines people really have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poseidon.errors import PoseidonError

if TYPE_CHECKING:
    from poseidon.comm.stale.table import Table
    from poseidon.net import Net
    from poseidon.parallel import Parallel, overlap, wait
    from poseidon.run.tables import Tables

__version__ = "0.1.0"
__all__ = ["Net", "Parallel", "PoseidonError", "Table", "Tables", "__version__", "overlap", "wait"]


def __getattr__(name: str) -> Any:
    """Loads torch only when a net is asked for, so that commands which need none start at once."""
    if name == "Net":
        from poseidon.net import Net

        return Net
    if name in ("Parallel", "overlap", "wait"):
        from poseidon import parallel

        return getattr(parallel, name)
    if name in ("Table", "Tables"):
        from poseidon.run import tables

        return getattr(tables, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
