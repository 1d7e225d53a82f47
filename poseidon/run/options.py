"""What a user may choose about how P workers train together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from poseidon.errors import UsageError

MANAGED = "ssp-managed"
CONSISTENCIES = ("ssp-push", "ssp", MANAGED)  # the first one unless another is asked for
ROW_ORDERS = ("importance", "random", "fifo", "fixed")  # likewise
JSON_LINES, YAML = (".jsonl", ".json"), (".yaml", ".yml")


def check_stats_path(path: str) -> None:
    """Raises unless the name says in which of the two formats statistics are written."""
    if Path(path).suffix.lower() not in (*JSON_LINES, *YAML):
        raise UsageError(f"--stats writes JSON lines or YAML: its name must end in .jsonl or .yaml, got {path!r}")


@dataclass(frozen=True, slots=True)
class DistributeOptions:
    """
    averages          gradients are averaged: the trajectory of one worker with the P-fold batch. False: summed, each
                      worker's loss normalised by its own batch, as PMLS-Caffe does it
    sync_bn           BatchNorm takes the statistics of the P-fold batch instead of each worker's own
    verify_replicas   after every so many iterations the parameters of all workers are compared; 0: never
    net_outputs       prefix of a CSV file of losses and outputs (`net_outputs.py`); None: none is written
    reuse_plan        a snapshot taken by as many workers brings its plan along
    data_in_memory    the train net's records are read once, spread over the workers' memory, and shuffled over all of
                      it (data/memory_share.py)
    balance           batches are dealt out by how fast each worker is (balance.py)
    stats             file for what each worker does in each clock (stats.py); None: none is written
    staleness         by how many clocks parameters may be behind (stale_updates.py); None: they are exchanged as the
                      plan says, and exact
    consistency       under staleness: how values come to workers (comm/stale/protocol.py)
    servers           under staleness: how many processes besides the workers only serve; 0: every worker serves
    row_order         in managed mode: which rows leave first (comm/stale/managed.py)
    half_rows         in managed mode: rows that leave early do so as float16; what that loses goes later
    limit_bps         what a worker may send, in bits per second; None: what the network carries
    agree_s           how soon a request to stop or to snapshot is acted upon, in seconds; 0: after every iteration
    """

    averages: bool = True
    sync_bn: bool = False
    verify_replicas: int = 0
    net_outputs: str | None = None
    reuse_plan: bool = True
    data_in_memory: bool = False
    balance: bool = False
    stats: str | None = None
    staleness: int | None = None
    consistency: str = CONSISTENCIES[0]
    servers: int = 0
    row_order: str = ROW_ORDERS[0]
    half_rows: bool = False
    limit_bps: float | None = None
    agree_s: float = 1.0

    def __post_init__(self) -> None:
        if self.verify_replicas < 0:
            raise UsageError(
                f"replicas are verified every 1 or more iterations, or never (0), got {self.verify_replicas}"
            )
        if not self.agree_s >= 0:
            raise UsageError(f"requests are acted upon within 0 or more seconds, got {self.agree_s}")
        self._check_staleness()
        if self.stats is not None:
            check_stats_path(self.stats)
        if self.balance and not self.averages:
            raise UsageError(
                "--balance with --reduce sum: a sum over workers of each one's own mean depends on who has how many "
                "samples; leave one of them out"
            )

    def _check_staleness(self) -> None:
        if self.consistency not in CONSISTENCIES:
            raise UsageError(f"--consistency is one of {', '.join(CONSISTENCIES)}, got {self.consistency!r}")
        if self.row_order not in ROW_ORDERS:
            raise UsageError(f"--row-order is one of {', '.join(ROW_ORDERS)}, got {self.row_order!r}")
        is_managed = self.staleness is not None and self.consistency == MANAGED
        if not is_managed and (self.row_order != ROW_ORDERS[0] or self.half_rows):
            raise UsageError(f"--row-order and --half-rows are for rows that leave early: give --consistency {MANAGED}")
        if self.staleness is None:
            if self.servers:
                raise UsageError("--servers are for training with --staleness; give --staleness 0 to be exact")
            return
        if self.staleness < 0 or self.servers < 0:
            raise UsageError(f"--staleness and --servers are 0 or more, got {self.staleness} and {self.servers}")
        together = {"--sync-bn": self.sync_bn, "--balance": self.balance}
        for flag, is_on in together.items():
            if is_on and self.staleness > 0:
                raise UsageError(
                    f"{flag} needs all workers in the same iteration, and --staleness {self.staleness} lets them be in "
                    "several; leave one of them out"
                )

    def common(self) -> str:
        """Those that must be the same on all workers, for comparison: where one of them writes is its own affair."""
        names = (field.name for field in fields(self) if field.name not in ("net_outputs", "stats"))
        return "\n".join(f"{name}: {getattr(self, name)}" for name in names)
