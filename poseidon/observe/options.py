"""What a user wants to see of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from poseidon.errors import UsageError


@dataclass(frozen=True, slots=True)
class ObserveOptions:
    """
    folder          of the run's record; "": none is kept
    all_iterations  every iteration is traced, not only a few after the start
    tensorboard     folder of event files; "": none
    histograms      of parameters and gradients, for TensorBoard, every so many iterations; 0: none
    metrics_port    where Prometheus finds figures; 0: any that is free; None: nowhere
    metrics_address of the interface that is served; "": only this host, or where several take part, the job's interface
    wandb           project of Weights & Biases; "": none
    continues       the run goes on from a snapshot, or after a failure
    command         the command line, for the record
    configuration   further facts for the record
    """

    folder: str = ""
    all_iterations: bool = False
    tensorboard: str = ""
    histograms: int = 0
    metrics_port: int | None = None
    metrics_address: str = ""
    wandb: str = ""
    continues: bool = False
    command: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.histograms and not self.tensorboard:
            raise UsageError("histograms are for TensorBoard; give --tensorboard FOLDER too, or leave --histograms out")
        if self.metrics_port is not None and not 0 <= self.metrics_port < 1 << 16:
            raise UsageError(f"--metrics-port is a port from 0 (any) to 65535, got {self.metrics_port}")

    def at(self, address: str) -> ObserveOptions:
        """The same, with figures served at this address unless another was asked for."""
        return replace(self, metrics_address=self.metrics_address or address)

    @property
    def has_metrics(self) -> bool:
        """True if somebody wants to be told how the run goes."""
        return bool(self.folder or self.tensorboard or self.wandb) or self.metrics_port is not None
