"""What messages do, by looking at all of them again and again: no agenda, no waves, no arrays. An oracle.

Each message is (sender, receiver, bytes, what must have arrived at the sender before). Of all that may start, the one
that was ready first takes the sender's interface; of those on the way to a node, the one that has begun first takes the
receiver's.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Message:
    sender: int
    receiver: int
    num_bytes: float
    after: list[Message] = field(default_factory=list)
    ready_s: float | None = None
    start_s: float | None = None
    sent_s: float | None = None
    arrived_s: float | None = None


def deliver(messages: list[Message], starts: list[float], byte_s: float, latency_s: float) -> None:
    """Fills in the times of all messages; `messages` are in the order in which nodes hand them over."""
    out_s, in_s = [0.0] * len(starts), [0.0] * len(starts)
    left = list(messages)
    while left:
        for message in left:
            if message.ready_s is None and all(other.arrived_s is not None for other in message.after):
                others = [other.arrived_s for other in message.after]
                message.ready_s = max([starts[message.sender], *others])
        known = [message for message in left if message.ready_s is not None]
        begins = {id(message): max(message.ready_s, out_s[message.sender]) for message in known}
        first = min(known, key=lambda message: (begins[id(message)], message.ready_s, messages.index(message)))
        first.start_s = begins[id(first)]
        first.sent_s = out_s[first.sender] = first.start_s + first.num_bytes * byte_s
        end_s = max(first.sent_s, in_s[first.receiver] + first.num_bytes * byte_s)
        in_s[first.receiver] = end_s
        first.arrived_s = max(end_s + latency_s, starts[first.receiver])
        left.remove(first)


def over_s(messages: list[Message], starts: list[float]) -> list[float]:
    """By node, when all its messages are in and out."""
    return [
        max(
            [starts[node]]
            + [m.arrived_s for m in messages if m.receiver == node]
            + [m.sent_s for m in messages if m.sender == node]
        )
        for node in range(len(starts))
    ]


# -- collectives, as the runtime's own loops go ------------------------------------------------------------------------
def ring_sum(size: int, num_bytes: float, num_pieces: int) -> list[Message]:
    """Each node sends a chunk per step, piece by piece; what it sends next is what it has just got. Two pieces are on
    their way at a time: before another goes, the one that was to come two places before it is in."""
    sent: list[list[Message]] = [[] for _ in range(size)]
    messages: list[Message] = []
    for number in range(2 * (size - 1) * num_pieces):
        for node in range(size):
            got = sent[(node - 1) % size]
            needed = {number - num_pieces, number - 2} if num_pieces > 1 else {number - 1}
            before = [got[place] for place in sorted(needed) if place >= 0]
            messages.append(Message(node, (node + 1) % size, num_bytes / size / num_pieces, before))
        for node in range(size):
            sent[node].append(messages[node - size])
    return messages


def ring_gather(blocks: list[list[float]]) -> list[Message]:
    """Pieces of every node's block are passed on until they are back."""
    size = len(blocks)
    messages: list[Message] = []
    holding: list[list[tuple[float, Message | None]]] = [[(piece, None) for piece in block] for block in blocks]
    for _ in range(size - 1):
        passed: list[list[tuple[float, Message | None]]] = [[] for _ in range(size)]
        for place in range(max(map(len, blocks))):
            for node in range(size):
                if place < len(holding[node]):
                    piece, before = holding[node][place]
                    message = Message(node, (node + 1) % size, piece, [before] if before else [])
                    messages.append(message)
                    passed[(node + 1) % size].append((piece, message))
        holding = passed
    return messages


def all_to_all(size: int, pieces: list[float], open_rounds: int) -> list[Message]:
    """Rounds of one piece to everybody; a round begins when all of the one `open_rounds` before has come."""
    messages: list[Message] = []
    incoming: list[dict[int, list[Message]]] = []
    for number, piece in enumerate(pieces):
        incoming.append({node: [] for node in range(size)})
        for turn in range(1, size):
            for node in range(size):
                after = incoming[number - open_rounds][node] if number >= open_rounds else []
                message = Message(node, (node + turn) % size, piece, list(after))
                messages.append(message)
                incoming[number][(node + turn) % size].append(message)
    return messages


def pairs(size: int, num_bytes: float) -> list[Message]:
    """Partners swap their sums; guests hand in theirs before, and get the result after."""
    even = 1
    while even * 2 <= size:
        even *= 2
    messages: list[Message] = []
    latest: dict[int, list[Message]] = {node: [] for node in range(size)}
    for guest in range(even, size):
        message = Message(guest, guest - even, num_bytes)
        messages.append(message)
        latest[guest - even].append(message)
    distance = 1
    while distance < even:
        swaps = [Message(node, node ^ distance, num_bytes, list(latest[node])) for node in range(even)]
        for message in swaps:
            latest[message.receiver].append(message)
        messages += swaps
        distance *= 2
    for guest in range(even, size):
        messages.append(Message(guest - even, guest, num_bytes, list(latest[guest - even])))
    return messages
