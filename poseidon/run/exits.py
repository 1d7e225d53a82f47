"""Exit codes by which a worker tells its launcher why it ended; 0 when it is done."""

from __future__ import annotations

from poseidon.errors import JoinFailed, PeerLost, TransportTimeout

MISTAKE = 1  # something its user has to mend: a new start would find it again
LOST_ANOTHER = 3  # another worker was lost, or not reached in time; this one could have gone on
CRASHED = 70  # a failure that nobody foresaw (EX_SOFTWARE); with a traceback
YIELDED = 75  # saved its work and made room, to be started again (EX_TEMPFAIL)

_PASSING = (PeerLost, TransportTimeout, JoinFailed)


def code_of(problem: BaseException) -> int:
    """The exit code of a problem that a worker tells its user: whether a new start may do better."""
    return LOST_ANOTHER if isinstance(problem, _PASSING) or isinstance(problem.__cause__, _PASSING) else MISTAKE
