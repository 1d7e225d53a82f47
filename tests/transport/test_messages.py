"""Messages moved by C: whatever threads send what when, everything arrives, in order within a tag; ends are noticed."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from poseidon.transport.messages import Messages
from poseidon.transport.native import IS_BUILT
from poseidon.transport.onesided.contact import Contact

LENGTHS = (1, 7, 5_000, 70_000, 300_000, 2_500_000)


def test_it_was_built():
    """The tests below mean nothing otherwise; pip leaves the part in C out where there is no compiler."""
    assert IS_BUILT


@contextlib.contextmanager
def meshes(size: int) -> Iterator[list[Messages]]:
    """Every worker's end, all in this process."""
    contacts: list[list[Contact]] = [[] for _ in range(size)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for low in range(size):
            for high in range(low + 1, size):
                calling = socket.create_connection(listener.getsockname())
                answering, _ = listener.accept()
                contacts[low].append(Contact(high, calling, None))
                contacts[high].append(Contact(low, answering, None))
    made = [Messages(rank, of_rank) for rank, of_rank in enumerate(contacts)]
    try:
        yield made
    finally:
        for messages in made:
            messages.close()


@pytest.fixture
def pair():
    with meshes(2) as made:
        yield made


def content(sender: int, receiver: int, tag: int, number: int, length: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(((sender * 10 + receiver) * 10 + tag) * 100 + number)
    return torch.randint(0, 256, (length,), generator=draw, dtype=torch.uint8)


@pytest.mark.parametrize("seed", range(4))
def test_everything_arrives_in_order_within_its_tag(seed):
    """Three workers, three tags; for each, on each worker, a thread that sends to both others and one that receives."""
    size, tags, rounds = 3, 3, 6
    problems: list[str] = []

    def lengths(sender: int, receiver: int, tag: int) -> list[int]:
        return random.Random(f"{seed} {sender} {receiver} {tag}").choices(LENGTHS, k=rounds)

    def others(rank: int) -> list[int]:
        return [other for other in range(size) if other != rank]

    def send(messages: Messages, rank: int, tag: int) -> None:
        draw = random.Random(f"send {seed} {rank} {tag}")
        works = []
        for number in range(rounds):
            for to in others(rank):
                data = content(rank, to, tag, number, lengths(rank, to, tag)[number])
                works.append(messages.send(data, to, "job", tag))
            if draw.random() < 0.3:
                time.sleep(0.003)
        problems.extend(f"send {rank} {tag}" for work in works if not work.wait(20.0))

    def receive(messages: Messages, rank: int, tag: int) -> None:
        draw = random.Random(f"receive {seed} {rank} {tag}")
        for number in range(rounds):
            if draw.random() < 0.3:
                time.sleep(0.01)
            for source in others(rank):
                room = torch.zeros(lengths(source, rank, tag)[number], dtype=torch.uint8)
                if not messages.recv(room, source, "job", tag).wait(20.0):
                    problems.append(f"receive {rank} from {source}, {tag}, {number}: not in time")
                elif not torch.equal(room, content(source, rank, tag, number, len(room))):
                    problems.append(f"receive {rank} from {source}, {tag}, {number}: other bytes")

    with meshes(size) as made:
        threads = [
            threading.Thread(target=act, args=(made[rank], rank, tag))
            for rank in range(size)
            for tag in range(tags)
            for act in (send, receive)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert problems == []


def test_a_message_nobody_asks_for_holds_up_no_other(pair):
    first, second = pair
    for number in range(20):
        first.send(torch.full((1_500_000,), number, dtype=torch.uint8), 1, "job", 1)
    first.send(torch.tensor([5], dtype=torch.uint8), 1, "job", 2)
    room = torch.zeros(1, dtype=torch.uint8)
    assert second.recv(room, 0, "job", 2).wait(10.0)
    assert room.item() == 5
    late = torch.zeros(1_500_000, dtype=torch.uint8)
    for number in range(20):
        assert second.recv(late, 0, "job", 1).wait(10.0)
        assert late.unique().tolist() == [number]


def test_channels_have_tags_of_their_own(pair):
    first, second = pair
    first.send(torch.tensor([1.0]), 1, "job", 3)
    first.send(torch.tensor([2.0]), 1, "leaders", 3)
    room = torch.zeros(1)
    assert second.recv(room, 0, "leaders", 3).wait(10.0)
    assert room.item() == 2.0


def test_what_came_before_the_end_can_still_be_had(pair):
    first, second = pair
    assert first.send(torch.arange(1000), 1, "job", 1).wait(10.0)
    first.close()
    time.sleep(0.05)
    room = torch.zeros(1000, dtype=torch.int64)
    assert second.recv(room, 0, "job", 1).wait(10.0)
    assert torch.equal(room, torch.arange(1000))
    with pytest.raises(ConnectionError):
        second.recv(room, 0, "job", 1).wait(10.0)


def test_a_wait_that_timed_out_can_be_repeated(pair):
    first, second = pair
    room = torch.zeros(4)
    work = second.recv(room, 0, "job", 1)
    assert work.wait(0.01) is False
    assert not work.done()
    first.send(torch.ones(4), 1, "job", 1)
    assert work.wait(10.0)
    assert work.wait(0.0)
    assert work.done()
    assert room.sum() == 4


@pytest.mark.parametrize("num_waiting", [1, 3])
@pytest.mark.parametrize("how", ["fail", "close", "peer"])
def test_waits_end_with_the_connections(pair, how, num_waiting):
    first, second = pair
    ended = []

    def wait(number: int) -> None:
        with pytest.raises(ConnectionError):
            second.recv(torch.zeros(1), 0, "job", number).wait(30.0)
        ended.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(num_waiting)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    {"fail": second.fail, "close": second.close, "peer": first.close}[how]()
    for thread in threads:
        thread.join(5.0)
    assert sorted(ended) == list(range(num_waiting))


def test_a_message_of_another_length_ends_the_connection(pair):
    first, second = pair
    work = second.recv(torch.zeros(3), 0, "job", 1)
    first.send(torch.zeros(4), 1, "job", 1)
    with pytest.raises(ConnectionError):
        work.wait(10.0)


def test_memory_is_kept_until_it_has_left_and_not_longer(pair):
    first, second = pair
    released = threading.Event()

    class Kept(torch.Tensor):
        def __del__(self):
            released.set()

    data = torch.ones(3_000_000).as_subclass(Kept)
    first.send(data, 1, "job", 1)
    del data
    room = torch.zeros(3_000_000)
    assert second.recv(room, 0, "job", 1).wait(10.0)
    assert room.sum() == 3_000_000
    assert released.wait(5.0)
