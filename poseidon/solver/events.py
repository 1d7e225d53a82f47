"""What a solver tells whoever listens: one frozen dataclass per kind of news, in the order things happen.

    SolverStarted → (NetPlanned → NetBuilt → WeightsLoaded*)+ → SolverReady
    solve:  SolvingStarted → [Restored] → iterations → [SnapshotWritten] → FinalLoss, tests → SolvingDone
    one iteration:
        [TestStarted → TestDone | TestInterrupted]*
        [BlobSeen*, GradientsSeen]          debug_info, in displayed iterations
        [IterationShown]                    every `display` iterations: the loss, as numbers
        [StepAdvanced] [RateShown] [GradientsClipped]
        IterationDone                       always; the loss stays a tensor, so that nobody waits for the device
        [SnapshotStarted → SnapshotWritten]

The loop itself prints nothing. A listener is a callable that takes one event; it is called in the solver's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from poseidon.net.net import Net
    from poseidon.spec import NetSource, caffe_pb2


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


Listener = Callable[[Event], None]


# -- building -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SolverStarted(Event):
    """The settings are known; nothing is built yet."""

    param: caffe_pb2.SolverParameter


@dataclass(frozen=True, slots=True)
class NetPlanned(Event):
    """A net is about to be built, in a state. `test_index` None: the train net; `origin` says where it is written."""

    test_index: int | None
    origin: str
    source: NetSource
    state: caffe_pb2.NetState


@dataclass(frozen=True, slots=True)
class NetBuilt(Event):
    test_index: int | None
    net: Net


@dataclass(frozen=True, slots=True)
class WeightsLoaded(Event):
    """Weights to start from were copied into a net."""

    path: str


@dataclass(frozen=True, slots=True)
class SolverReady(Event):
    """All nets are built."""


# -- the whole run --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SolvingStarted(Event):
    net_name: str
    policy: str


@dataclass(frozen=True, slots=True)
class RestoreStarted(Event):
    """Solving goes on from a snapshot."""

    path: str


@dataclass(frozen=True, slots=True)
class Restored(Event):
    """A snapshot's contents are in place. `exact`: data positions and random draws came with it."""

    path: str
    iteration: int
    exact: bool


@dataclass(frozen=True, slots=True)
class FinalLoss(Event):
    """The smoothed loss after the last update, from one more forward pass."""

    iteration: int
    loss: float


@dataclass(frozen=True, slots=True)
class SolvingDone(Event):
    iteration: int
    stopped_early: bool


# -- one iteration --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class OutputValue:
    """One element of a net's output blob; weight 0: it is no loss."""

    blob: str
    value: float
    loss_weight: float


@dataclass(frozen=True, slots=True)
class IterationShown(Event):
    """An iteration that is displayed, after its backward pass and before its update."""

    iteration: int
    loss: float
    elapsed_s: float
    num_iterations: int
    """Since the last one shown, in `elapsed_s`."""
    interval: int
    outputs: tuple[OutputValue, ...]


@dataclass(frozen=True, slots=True)
class StepAdvanced(Event):
    """A multistep policy went down to its next step."""

    iteration: int
    step: int


@dataclass(frozen=True, slots=True)
class RateShown(Event):
    iteration: int
    rate: float


@dataclass(frozen=True, slots=True)
class GradientsClipped(Event):
    iteration: int
    norm: float
    limit: float
    factor: float


@dataclass(frozen=True, slots=True)
class IterationDone(Event):
    """The update of `iteration` is applied (or on its way); `loss` is this iteration's own, on the net's device.

    Of several workers each tells its own losses here: a mean would make all of them wait, every time.
    """

    iteration: int
    loss: Tensor
    smoothed_loss: Tensor
    rate: float


# -- debug_info -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BlobSeen(Event):
    """The mean absolute value of a blob in a debugged pass.

    `backward` False: the data after the layer's forward, True: the diff after its backward. `kind`: top, bottom or
    param; `blob`: the blob's name, or a parameter's name or index.
    """

    backward: bool
    layer: str
    kind: str
    blob: str
    mean: float


@dataclass(frozen=True, slots=True)
class GradientsSeen(Event):
    """Norms over all parameters after a debugged backward pass."""

    data_l1: float
    diff_l1: float
    data_l2: float
    diff_l2: float


# -- tests and snapshots --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TestStarted(Event):
    __test__ = False  # not a test class, whatever pytest thinks of the name
    iteration: int
    net_index: int


@dataclass(frozen=True, slots=True)
class TestDone(Event):
    """`outputs` are means over the test's batches; `loss` is None unless test_compute_loss is set."""

    __test__ = False
    iteration: int
    net_index: int
    loss: float | None
    outputs: tuple[OutputValue, ...]


@dataclass(frozen=True, slots=True)
class TestInterrupted(Event):
    __test__ = False
    iteration: int
    net_index: int


@dataclass(frozen=True, slots=True)
class SnapshotStarted(Event):
    """`is_hdf5` tells the format of both files."""

    iteration: int
    model: Path
    state: Path
    is_hdf5: bool


@dataclass(frozen=True, slots=True)
class SnapshotFailed(Event):
    """It could not be written, and training goes on; the snapshots before it are whole."""

    iteration: int
    problem: str


@dataclass(frozen=True, slots=True)
class SnapshotWritten(Event):
    """All files are on the disk under their names."""

    iteration: int
    model: Path
    state: Path
