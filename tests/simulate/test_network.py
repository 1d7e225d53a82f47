"""Collectives by themselves: closed forms, and every small case against an oracle that looks at single messages."""

from __future__ import annotations

import itertools
import math

import pytest

from poseidon.simulate.agenda import Agenda
from poseidon.simulate.interface import Interface
from poseidon.simulate.waves import MAX_SUM_PIECE_BYTES, gathered, pushed, summed_around, summed_in_pairs
from poseidon.transport.cutting import DIRECT_BYTES, MAX_PART_BYTES, MIN_PIECE_BYTES, OPEN_ROUNDS
from tests.simulate import slow_network
from tests.simulate.running import BYTE_S, machines, run

ALPHA = 0.003
SIZES = (2, 3, 4, 5, 8)
ENGINES = pytest.mark.parametrize("waves", [False, True], ids=["messages", "waves"])


def all_close(times, expected):
    return all(math.isclose(time, expected, rel_tol=1e-9, abs_tol=1e-12) for time in times)


@ENGINES
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("latency_s", [0.0, ALPHA])
def test_a_ring_takes_its_bytes_and_its_steps(size, latency_s, waves):
    """2 (P − 1) / P · B / β + 2 (P − 1) · α."""
    (over,) = run(machines(size, latency_s), [summed_around(size, 6000.0, num_pieces=1)], waves=waves)
    assert all_close(over, 2 * (size - 1) / size * 6000 * BYTE_S + 2 * (size - 1) * latency_s)


@ENGINES
@pytest.mark.parametrize("size", SIZES)
def test_pieces_of_a_ring_hide_the_latency(size, waves):
    """A piece is on its way while the other one is; α is seen once if bytes take longer than it does."""
    num_bytes = 2 * size * 1e6 * ALPHA * 2
    (over,) = run(machines(size, ALPHA), [summed_around(size, num_bytes)], waves=waves)
    assert all_close(over, 2 * (size - 1) / size * num_bytes * BYTE_S + ALPHA)


@ENGINES
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("latency_s", [0.0, ALPHA])
def test_a_gather_straight_to_everybody(size, latency_s, waves):
    (over,) = run(machines(size, latency_s), [gathered([1000.0] * size, 4)], waves=waves)
    assert all_close(over, (size - 1) * 1000 * BYTE_S + latency_s)


@ENGINES
@pytest.mark.parametrize("size", SIZES)
def test_a_gather_around_the_ring(size, waves):
    """One piece per block: every step takes its bytes and α."""
    block = float(MIN_PIECE_BYTES)
    assert block > DIRECT_BYTES
    (over,) = run(machines(size, ALPHA), [gathered([block] * size, 4)], waves=waves)
    assert all_close(over, (size - 1) * (block * BYTE_S + ALPHA))


@ENGINES
@pytest.mark.parametrize("size", SIZES)
def test_a_push_of_shards(size, waves):
    (over,) = run(machines(size, ALPHA), [pushed([[500.0] * size] * size, 4)], waves=waves)
    assert all_close(over, (size - 1) * 500 * BYTE_S + ALPHA)


@ENGINES
@pytest.mark.parametrize("size", [2, 4, 8, 3, 5, 6, 7])
def test_pairs_take_a_round_each(size, waves):
    """log2 P rounds. Guests' sums come a round before and are sent back a round after, of which those that wait for no
    guest are ahead, and in the way at an interface."""
    wire_s = 700 * BYTE_S
    round_s = wire_s + ALPHA
    doublings = int(math.log2(size))
    (over,) = run(machines(size, ALPHA), [summed_in_pairs(size, 700.0)], waves=waves)
    if size == 1 << doublings:
        assert all_close(over, doublings * round_s)
    else:
        assert (doublings + 1) * round_s * (1 - 1e-9) <= max(over) <= (doublings + 2) * (round_s + wire_s)


@ENGINES
def test_two_that_share_a_link_take_twice_as_long(waves):
    """Whatever goes over a link of β, β is what it carries."""
    one, other = (pushed([[1000.0] * 2] * 2, 4) for _ in range(2))
    first, second = run(machines(2), [one, other], waves=waves)
    assert all_close(first, 1000 * BYTE_S)
    assert all_close(second, 2 * 1000 * BYTE_S)


@ENGINES
def test_connections_take_turns(waves):
    """A small all-reduce beside a push in six parts, of which four are queued before it: both its steps go after the
    part that is on the wire when they are handed over, and the push is as late as its bytes make it."""
    part, step = float(MAX_PART_BYTES), 500.0
    push, ring = pushed([[6 * part] * 2] * 2, 4), summed_around(2, 2 * step, num_pieces=1)
    pushing, ringing = run(machines(2), [push, ring], waves=waves)
    assert all_close(ringing, 2 * (part + step) * BYTE_S)
    assert all_close(pushing, (6 * part + 2 * step) * BYTE_S)


@ENGINES
def test_a_small_sum_waits_for_two_pieces_of_a_large_one(waves):
    """In each of its steps, and not for all the rest of the large one's step."""
    size, piece, small = 4, float(MAX_SUM_PIECE_BYTES), 400.0
    large = summed_around(size, 20 * piece * size)
    (*_, summing), (*_, ringing) = run(machines(size), [large, summed_around(size, small, num_pieces=1)], waves=waves)
    steps = 2 * (size - 1)
    assert math.isclose(ringing, steps * (2 * piece + small / size) * BYTE_S, rel_tol=1e-9)
    assert math.isclose(summing, steps * (20 * piece + small / size) * BYTE_S, rel_tol=1e-9)


@ENGINES
def test_one_connection_keeps_its_order(waves):
    """Ours to another node is one: what a push has queued goes before a gather that begins later."""
    part, block = float(MAX_PART_BYTES), 500.0
    push, gather = pushed([[3 * part] * 2] * 2, 4), gathered([block] * 2, 4)
    pushing, gathering = run(machines(2), [push, gather], waves=waves)
    assert all_close(pushing, 3 * part * BYTE_S)
    assert all_close(gathering, (3 * part + block) * BYTE_S)


def test_shares_of_a_link_are_bytes_not_messages():
    """Of two connections, one with messages three times as long, each gets half of the bytes while both have some."""
    agenda, sent = Agenda(), []

    def start(message):
        sent.append(message)
        return agenda.now_s + message[1]

    interface = Interface(agenda, start)
    for connection, size, number in (("long", 3, 20), ("short", 1, 60)):
        for _ in range(number):
            interface.put(connection, size, (connection, size), 0)
    agenda.run()
    totals = {"long": 0, "short": 0}
    for connection, size in sent:
        totals[connection] += size
        assert abs(totals["long"] - totals["short"]) <= 3
    assert totals == {"long": 60, "short": 60}


@ENGINES
def test_interfaces_send_and_receive_at_the_same_time(waves):
    (over,) = run(machines(2), [gathered([1000.0] * 2, 4)], waves=waves)
    assert all_close(over, 1000 * BYTE_S)


@ENGINES
def test_a_receiver_takes_one_after_another(waves):
    """Two nodes to a third: its interface is what they share."""
    blocks = [[0.0, 0.0, 800.0], [0.0, 0.0, 800.0], [0.0, 0.0, 0.0]]
    (over,) = run(machines(3, ALPHA), [pushed(blocks, 4)], waves=waves)
    assert math.isclose(over[2], 2 * 800 * BYTE_S + ALPHA)


@ENGINES
@pytest.mark.parametrize("oversubscription", [1.0, 2.0, 4.0])
def test_an_oversubscribed_switch(oversubscription, waves):
    """Four nodes on each of two switches, everybody to everybody: 4 of 7 messages of each node leave the switch, over
    an uplink of 4 β / s. s = 1: interfaces are what is full."""
    size, block = 8, 1000.0
    described = machines(size, nodes_per_switch=4, oversubscription=oversubscription)
    (over,) = run(described, [pushed([[block] * size] * size, 4)], waves=waves)
    uplink_s = 4 * 4 * block * BYTE_S * oversubscription / 4
    interface_s = 7 * block * BYTE_S
    least_s = max(uplink_s, interface_s)
    assert least_s <= max(over) + 1e-12 <= least_s * 1.3


@ENGINES
def test_all_across_a_switch(waves):
    """Two switches of one node each, 3 times oversubscribed: the uplink is a third of an interface."""
    described = machines(2, ALPHA, nodes_per_switch=1, oversubscription=3.0)
    (over,) = run(described, [pushed([[900.0] * 2] * 2, 4)], waves=waves)
    assert all_close(over, 3 * 900 * BYTE_S + ALPHA)


@ENGINES
def test_a_ring_crosses_an_uplink_with_one_message_at_a_time(waves):
    """Neighbours are on one switch but for one: oversubscription up to the number of nodes costs a ring nothing."""
    size = 8
    plain = run(machines(size, ALPHA), [summed_around(size, 8000.0, num_pieces=1)], waves=waves)
    switched = machines(size, ALPHA, nodes_per_switch=4, oversubscription=4.0)
    assert run(switched, [summed_around(size, 8000.0, num_pieces=1)], waves=waves) == plain


@ENGINES
@pytest.mark.parametrize("number", [1, 4])
def test_messages_cost_processors_their_overhead(number, waves):
    """α alone; with several on their way, o of each at each node: a step hands over one and wakes up for one."""
    size, latency_s, overhead_s = 4, 0.004, 0.003
    described = machines(size, latency_s, overhead_s)
    sums = [summed_around(size, 1e-6, num_pieces=1) for _ in range(number)]
    over = run(described, sums, waves=waves)
    steps = 2 * (size - 1)
    if number == 1:
        assert all_close(over[0], steps * latency_s)
    else:
        total_s = max(map(max, over))
        assert number * steps * overhead_s <= total_s <= number * steps * overhead_s + steps * latency_s


@ENGINES
def test_processors_go_through_payload(waves):
    """Where they handle half of what a link carries, they are the limit: both ends of a message one after the other."""
    described = machines(2, handling_bps=4 / BYTE_S)
    (over,) = run(described, [pushed([[1000.0] * 2] * 2, 4)], waves=waves)
    assert all_close(over, (2 + 1 + 2) * 1000 * BYTE_S)


@ENGINES
@pytest.mark.parametrize("size", SIZES)
def test_one_lane_stands_for_all(size, waves):
    described = machines(size, ALPHA, 0.001, handling_bps=3 / BYTE_S)
    block = float(MIN_PIECE_BYTES)
    mixed = [
        summed_around(size, 5e5),
        gathered([block] * size, 4),
        pushed([[9000.0] * size] * size, 4),
        summed_around(size, 1000.0),
    ]
    if size in (2, 4, 8):
        mixed.append(summed_in_pairs(size, 3000.0))
    alone = run(described, mixed, lanes=1)
    together = run(described, mixed, waves=waves)
    for one, all_of_them in zip(alone, together, strict=True):
        assert all_close(all_of_them, one[0])


@pytest.mark.parametrize("stride", [1, 2, 3, 7])
@ENGINES
def test_several_steps_as_one_take_as_long(stride, waves):
    size = 8
    described = machines(size, ALPHA)
    for make in (
        lambda s: summed_around(size, 8000.0, num_pieces=1, stride=s),
        lambda s: gathered([float(MIN_PIECE_BYTES)] * size, 4, stride=s),
    ):
        (plain,) = run(described, [make(1)], lanes=1)
        (strided,) = run(described, [make(stride)], waves=waves)
        assert all_close(strided, plain[0])


# -- every small case against single messages ------------------------------------------------------------------------
STARTS = (0.0, 0.0007, 0.011)


def cases(size):
    piece = float(MIN_PIECE_BYTES)
    yield summed_around(size, 4000.0, num_pieces=1), slow_network.ring_sum(size, 4000.0, 1)
    yield summed_around(size, 4000.0), slow_network.ring_sum(size, 4000.0, 2)
    yield summed_around(size, 4000.0, num_pieces=5), slow_network.ring_sum(size, 4000.0, 5)
    yield gathered([900.0] * size, 4), slow_network.all_to_all(size, [900.0], OPEN_ROUNDS)
    yield gathered([piece + 4000] * size, 4), slow_network.ring_gather([[piece, 4000.0]] * size)
    parts = [float(1 << 20)] * 5 + [8000.0]
    yield pushed([[sum(parts)] * size] * size, 4), slow_network.all_to_all(size, parts, OPEN_ROUNDS)
    yield summed_in_pairs(size, 600.0), slow_network.pairs(size, 600.0)
    uneven = [[piece, 500.0 * (node + 1)] for node in range(size)]
    yield gathered([sum(block) for block in uneven], 4), slow_network.ring_gather(uneven)


@pytest.mark.parametrize("latency_s", [0.0, 0.0003])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_single_messages_agree(size, latency_s):
    """Nodes that start together and apart, in every way; never at the very same moment, where either may be first."""
    described = machines(size, latency_s)
    for chosen in itertools.product(STARTS, repeat=size):
        starts = [start + node * 1.3e-5 for node, start in enumerate(chosen)]
        for number, (collective, messages) in enumerate(cases(size)):
            slow_network.deliver(messages, list(starts), BYTE_S, latency_s)
            expected = slow_network.over_s(messages, list(starts))
            (over,) = run(described, [collective], starts)
            assert over == pytest.approx(expected, rel=1e-9, abs=1e-12), (number, starts)


@pytest.mark.parametrize("size", [2, 3])
def test_waves_agree_with_single_messages(size):
    """But for who is served first at an interface, where nodes start apart."""
    described = machines(size, 0.0003)
    for chosen in itertools.product(STARTS, repeat=size):
        starts = [start + node * 1.3e-5 for node, start in enumerate(chosen)]
        for number, (collective, _) in enumerate(cases(size)):
            (exact,) = run(described, [collective], starts)
            (waves,) = run(described, [collective], starts, waves=True)
            wire_s = max(max(wave.bytes_of(node) for node in range(size)) for wave in collective.waves) * BYTE_S
            assert waves == pytest.approx(exact, rel=1e-9, abs=wire_s), (number, starts)
            if number < 2:  # a ring's interfaces hear from one neighbour only
                assert waves == pytest.approx(exact, rel=1e-9), (number, starts)
