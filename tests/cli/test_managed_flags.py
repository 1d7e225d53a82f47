"""Flags of managed communication, unequal machines and statistics: what makes no sense is refused, with the reason."""

from __future__ import annotations

import pytest

from poseidon.cli import POSEIDON, parse
from poseidon.cli.workers import check_alone, check_values, limit_bps
from poseidon.errors import UsageError


def flags(*words: str):
    return parse(POSEIDON, ["train", "--solver=s.prototxt", *words])[1]


def test_a_limit_is_in_bits_per_second():
    assert limit_bps(flags("--workers=2", "--bandwidth-limit=200mbit")) == 200e6
    assert limit_bps(flags("--workers=2")) is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--bandwidth-limit=fast",), "a bandwidth is a number above 0 with one of"),
        (("--bandwidth-limit=100kbit",), "must be at least 1mbit, got 100kbit: signs of life must get through"),
        (("--bandwidth-limit=1gbit", "--one-sided=mpi"), "what MPI sends cannot be limited from here"),
        (("--one-sided=mpi",), "--one-sided=mpi says what carries puts, but nothing is put: give --pattern=gpi"),
        (("--stats=run.txt",), r"must end in \.jsonl or \.yaml, got 'run.txt'"),
        (("--row-order=fifo",), "--row-order is for training under staleness"),
        (("--half-rows",), "--half-rows is for training under staleness"),
        (("--staleness=2", "--half-rows"), "for rows that leave early: give --consistency ssp-managed"),
        (("--staleness=2", "--row-order=random"), "for rows that leave early: give --consistency ssp-managed"),
        (("--staleness=2", "--balance"), "--balance needs all workers in the same iteration"),
        (("--staleness=2", "--consistency=ssp-managed", "--scheme=factor-server"), "--scheme is one of server, got"),
    ],
)
def test_what_cannot_be_is_refused(words, text):
    with pytest.raises(UsageError, match=text):
        check_values(flags("--workers=2", *words))


def test_what_can_be_is_not():
    check_values(flags("--workers=2", "--staleness=4", "--consistency=ssp-managed", "--row-order=fifo", "--half-rows"))
    check_values(flags("--workers=2", "--staleness=0", "--balance", "--stats=run.yaml", "--bandwidth-limit=1gbit"))
    for what in ("--pattern=gpi", "--data-in-memory", "--staleness=0"):
        check_values(flags("--workers=2", "--one-sided=sockets", what))


@pytest.mark.parametrize("word", ["--balance", "--stats=run.yaml", "--bandwidth-limit=1gbit"])
def test_they_are_for_several_workers(word):
    with pytest.raises(UsageError, match="is for training with several workers"):
        check_alone(flags(word))


def test_an_unknown_order_of_rows_is_refused_at_once():
    with pytest.raises(UsageError, match="importance"):
        flags("--workers=2", "--row-order=best")
