"""What workers conclude from each other's cards: who shares a node, how many threads each computes with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poseidon.run.cards import Card, nodes_of, threads_of


def card(host: str = "a", local_size: int | None = None, cores: str = "0", threads: int | None = None) -> Card:
    return Card(host, local_size, tuple(map(int, cores.split())), threads, "lo (127.0.0.1), because")


def test_cards_travel_as_json():
    for sent in (card(), card("b.example", 3, "0 5 17", 4)):
        assert Card.from_json(sent.to_json()) == sent


@pytest.mark.parametrize(
    ("hosts", "nodes"),
    [
        ("a a a", [0, 0, 0]),
        ("a a b b b", [0, 0, 1, 1, 1]),
        ("b a b a", [0, 1, 0, 1]),  # ranks dealt out over hosts, as srun can
        ("a:2 a:2 b:1", [0, 0, 1]),
        ("a:1 a:1 a:1", [0, 1, 2]),  # nodes that share a name, as in an emulated cluster
        ("a:2 a:2 a:2 a:2", [0, 0, 1, 1]),
        ("b:2 a:1 b:2", [0, 1, 0]),
    ],
)
def test_nodes(hosts, nodes):
    cards = [
        card(host, int(size) if size else None) for host, _, size in (word.partition(":") for word in hosts.split())
    ]
    assert nodes_of(cards) == nodes


@pytest.mark.parametrize(
    ("cards", "threads"),
    [
        ([card(cores="0 1 2 3")] * 2, [2, 2]),
        ([card(cores="0 1 2 3 4")] * 2, [2, 2]),
        ([card(cores="0 1")] * 3, [1, 1, 1]),  # never none
        ([card(cores="0 1 2 3"), card("b", cores="0 1")], [4, 2]),  # hosts share no cores
        ([card(cores="0 1"), card(cores="2 3")], [2, 2]),  # bound to cores of their own
        ([card(cores="0 1 2 3 4 5"), card(cores="0 1")], [5, 1]),
        ([card(cores="0 1 2 3", threads=3), card(cores="0 1 2 3")], [3, 2]),  # what is asked for is taken
        ([card(local_size=1, cores="0 1")] * 2, [2, 2]),  # nodes of their own, whatever they are called
    ],
)
def test_threads(cards, threads):
    assert threads_of(cards, nodes_of(cards)) == threads


@given(st.lists(st.sets(st.integers(0, 15), min_size=1), min_size=1, max_size=6))
def test_threads_beyond_one_each_have_a_core_each(cores):
    cards = [Card("a", None, tuple(own), None, "lo") for own in cores]
    threads = threads_of(cards, [0] * len(cards))
    assert sum(count for count in threads if count > 1) <= len(set().union(*cores))
    assert all(1 <= count <= len(own) for count, own in zip(threads, cores, strict=True))
