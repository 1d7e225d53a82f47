"""Exit codes: what passes by itself is worth a new start, a mistake is not."""

from __future__ import annotations

import pytest

from poseidon.errors import JoinFailed, PeerLost, PoseidonError, TransportError, TransportTimeout, UsageError
from poseidon.run.exits import LOST_ANOTHER, MISTAKE, code_of


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (PeerLost("rank 1 is lost", (1,)), LOST_ANOTHER),
        (TransportTimeout("rank(s) 1 of 2 have not joined the job"), LOST_ANOTHER),
        (JoinFailed("rank 0 cannot listen on port 15000"), LOST_ANOTHER),
        (TransportError("rank 1 was started for 3 workers, others for 2"), MISTAKE),
        (UsageError("--workers is for this host alone"), MISTAKE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_new_start_may_mend(problem, code):
    assert code_of(problem) == code
    with pytest.raises(PoseidonError) as told:  # as a worker does that tells the others first
        raise PoseidonError(f"rank 0: {problem}") from problem
    assert code_of(told.value) == code
