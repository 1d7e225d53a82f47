"""What a user may choose about how P workers train together."""

from __future__ import annotations

from dataclasses import dataclass, fields

from poseidon.errors import UsageError


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
    agree_s           how soon a request to stop or to snapshot is acted upon, in seconds; 0: after every iteration
    """

    averages: bool = True
    sync_bn: bool = False
    verify_replicas: int = 0
    net_outputs: str | None = None
    reuse_plan: bool = True
    data_in_memory: bool = False
    agree_s: float = 1.0

    def __post_init__(self) -> None:
        if self.verify_replicas < 0:
            raise UsageError(
                f"replicas are verified every 1 or more iterations, or never (0), got {self.verify_replicas}"
            )
        if not self.agree_s >= 0:
            raise UsageError(f"requests are acted upon within 0 or more seconds, got {self.agree_s}")

    def common(self) -> str:
        """Those that must be the same on all workers, for comparison: where one of them writes is its own affair."""
        names = (field.name for field in fields(self) if field.name != "net_outputs")
        return "\n".join(f"{name}: {getattr(self, name)}" for name in names)
