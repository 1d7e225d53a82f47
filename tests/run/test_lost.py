"""What a worker says of one that was lost, when a one-sided connection told it first: the health star knows more."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from poseidon.errors import PeerLost
from poseidon.run.worker import _as_told_by_all
from poseidon.transport.base import Peer
from poseidon.transport.health import Loss

PEERS = tuple(Peer(rank, f"h{rank}", 100 + rank) for rank in range(3))
STANDING = "it was at clock 63, its last unit was TREE fc1/0"
GONE = Loss((1,), f"is lost: the process ended ({STANDING})", STANDING)
BROKEN = "rank 1 (host h1, pid 101) is lost: its connection closed (while exchanging unit 0)"
FULL = f"rank 1 (host h1, pid 101) is lost: the process ended ({STANDING})"


@pytest.mark.parametrize(
    ("problem", "loss", "told"),
    [
        (PeerLost(BROKEN, (1,)), GONE, f"{BROKEN} ({STANDING})"),
        (PeerLost(FULL, (1,)), GONE, FULL),
        (PeerLost(BROKEN, (1,)), None, BROKEN),
        (PeerLost(BROKEN, (1,)), Loss((1,), "gave up: no more data"), BROKEN),
        (PeerLost("rank 2 left", (2,)), GONE, f"{FULL}; then: rank 2 left"),
    ],
    ids=("it adds where that one stood", "once", "nobody knows more", "there is nothing to add", "the first to go"),
)
def test_the_first_one_lost_is_named_with_where_it_stood(problem, loss, told):
    found = _as_told_by_all(problem, SimpleNamespace(peers=PEERS, verdict=lambda grace_s: loss))
    assert str(found) == told
    assert found.ranks == (problem.ranks if loss is None else loss.ranks)
