"""FeatureRequest: which blobs of a net go into which databases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from poseidon.errors import NetError, UsageError
from poseidon.spec import nearest


@dataclass(frozen=True, slots=True)
class FeatureRequest:
    """`blobs[i]` goes to the database `targets[i]`."""

    blobs: tuple[str, ...]
    targets: tuple[str, ...]
    num_batches: int
    backend: str

    def __post_init__(self) -> None:
        if len(self.blobs) != len(self.targets):
            raise UsageError(
                f"the number of blob names and dataset names must be equal, got {len(self.blobs)} "
                f"({','.join(self.blobs)}) and {len(self.targets)} ({','.join(self.targets)})"
            )
        if len(set(self.targets)) != len(self.targets):
            raise UsageError(f"each blob needs a dataset of its own, got {','.join(self.targets)}")

    def check_blobs(self, known: Iterable[str], where: str) -> None:
        """Raises for a blob that is not among those of the net in the file `where`."""
        known = list(known)
        for blob in self.blobs:
            if blob not in known:
                raise NetError(f"Unknown feature blob name {blob} in the network {where}{nearest(blob, known)}")

    def of_worker(self, rank: int) -> FeatureRequest:
        """What one of several workers writes."""
        return replace(self, targets=tuple(f"{target}_{rank}" for target in self.targets))
