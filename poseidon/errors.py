"""What can go wrong, as one tree.

    PoseidonError                 everything a user can meet; the command line prints it without a traceback
    ├── SpecError                 prototxt or binary spec that cannot be understood (file, line, column)
    ├── NetError                  a net that cannot be built or run: unknown bottoms, duplicate tops, ...
    │   └── LayerError            one layer's options or bottoms are wrong; names the layer and its line
    │       └── UserCodeError     code of the user's that a layer runs has failed; what it raised is the cause
    ├── WeightsError              caffemodel / HDF5 weights that are damaged or do not fit the net
    ├── DataError                 a data source or record that cannot be read (path, key or line)
    ├── SolverError               solver settings that contradict each other or the net
    │   └── SnapshotError         a snapshot that is damaged, incomplete or of another net
    ├── TransportError            workers cannot reach each other, or do not agree on what to exchange
    │   ├── JoinFailed            workers did not come together this time; a new start may do
    │   ├── PeerLost              a worker died, hangs, was cut off or gave up; names its rank and host
    │   └── TransportTimeout      an exchange took longer than allowed although nobody is known to be lost
    ├── WorkersDiffer             workers of one job differ where they must be alike; names what, and their ranks
    ├── WorkersFailed             something that did not work on some workers of a job, or on all; told to all alike
    ├── PlanError                 a communication plan, or what it is made from, that is damaged or does not fit the net
    ├── RecordError               a run folder that is damaged, of another version, or cannot be written
    ├── ConvertError              a model that cannot be converted, or does not compute the same afterwards
    └── UsageError                a command or call used wrongly: flags, arguments, missing extras

Messages follow one pattern: the thing, what was expected, what came, what to do.
"""

from __future__ import annotations


class PoseidonError(Exception):
    """Base of every error meant for a user."""


class SpecError(PoseidonError):
    """A prototxt or binary message that cannot be understood."""


class NetError(PoseidonError):
    """A net that cannot be built or run as described."""


class LayerError(NetError):
    """One layer's parameters or bottoms are wrong."""


class UserCodeError(LayerError):
    """Code of the user's that a layer runs has failed; `__cause__` is what it raised."""


class WeightsError(PoseidonError):
    """Weights that are damaged or do not fit the net."""


class DataError(PoseidonError):
    """A data source or one of its records cannot be read."""


class SolverError(PoseidonError):
    """Solver settings that contradict each other or the net."""


class SnapshotError(SolverError):
    """A snapshot that is damaged, incomplete or belongs to another net."""


class PlanError(PoseidonError):
    """A communication plan, or what it is made from, that is damaged or does not fit the net."""


class TransportError(PoseidonError):
    """Workers cannot reach each other, or do not agree on what to exchange. `ranks`: whom it is about."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class JoinFailed(TransportError):  # noqa: N818
    """Workers that did not come together for reasons that pass: a port was taken meanwhile, a call was not answered."""


class PeerLost(TransportError):  # noqa: N818 (read as "except PeerLost")
    """Workers that died, hang, were cut off or gave up."""


class TransportTimeout(TransportError):  # noqa: N818
    """An exchange that took longer than allowed although nobody is known to be lost."""


class WorkersDiffer(PoseidonError):  # noqa: N818 (read as "except WorkersDiffer")
    """Workers of one job differ where they must be alike: in what they were started with, or in their parameters.

    `ranks`: those that differ from rank 0.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class WorkersFailed(PoseidonError):  # noqa: N818 (read as "except WorkersFailed")
    """What did not work on some workers of a job, or on all: every worker raises the same. `ranks`: where."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class RecordError(PoseidonError):
    """A run folder that is damaged, of another version, or cannot be written."""


class ConvertError(PoseidonError):
    """A model that cannot be converted, or does not compute the same afterwards."""


class UsageError(PoseidonError):
    """A command, flag or call used in a way that cannot work."""
