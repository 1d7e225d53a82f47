"""The protocol of notified puts, tried in every order on a small instance, and in many orders on larger ones.

The world here is a model: workers that go forward and backward through layers, memory whose cells hold *what* was
written (a version, or whose gradients a sum is made of), and a network that delivers what it likes first. It is checked

    on every read     forward and backward find exactly the version of their iteration in each parameter
    on every write    nobody writes into a parameter between its forward and its backward pass, nor into a slot that
                      has not been read
    on every update   the sum holds one gradient of every worker, of the version being made: none lost, none twice
    at the end        everybody has done everything: nothing is stuck
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from poseidon.comm.notified import protocol
from poseidon.comm.notified.protocol import Act, Gathering, Node, Stage
from poseidon.errors import TransportError
from poseidon.plan import Flow, Send
from poseidon.transport.onesided.base import LAST_VALUE, next_value

FIRST = LAST_VALUE - 1  # versions wrap in the second iteration


def flow(layer: int, root: int, size: int, arity: int) -> Flow:
    return Flow(layer, Send(layer, 0, 1), 0, 1, root, arity, size)


@dataclass(frozen=True)
class Put:
    """On its way: a sum (`content` is who is in it) or values (a version), with the notification's version."""

    source: int
    target: int
    layer: int
    content: frozenset[tuple[int, int]] | int
    version: int


@dataclass(frozen=True)
class Worker:
    """`place` counts steps: forward through all layers, backward through all, next iteration."""

    place: int
    nodes: tuple[Node, ...]
    values: tuple[int, ...]
    slots: tuple[tuple[tuple[int, frozenset[tuple[int, int]] | None], ...], ...]  # by layer: child → what is there


@dataclass(frozen=True)
class World:
    workers: tuple[Worker, ...]
    network: frozenset[Put]


class Model:
    """P workers, L layers, so many iterations; `flows[layer]` are the trees."""

    def __init__(self, size: int, flows: list[Flow], iterations: int, *, repeats: bool = False) -> None:
        self.size, self.flows, self.iterations, self.repeats = size, flows, iterations, repeats
        self.layers = len(flows)

    def start(self) -> World:
        workers = []
        for rank in range(self.size):
            nodes = tuple(Node(f.parent(rank), f.children(rank), FIRST) for f in self.flows)
            slots = tuple(tuple((child, None) for child in f.children(rank)) for f in self.flows)
            workers.append(Worker(0, nodes, (FIRST,) * self.layers, slots))
        return World(tuple(workers), frozenset())

    def is_end(self, world: World) -> bool:
        last = self.iterations * 2 * self.layers
        return all(w.place == last and all(n.stage is Stage.GATHERING for n in w.nodes) for w in world.workers)

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Everything that can happen next."""
        for rank, worker in enumerate(world.workers):
            moved = self._compute(world, rank, worker)
            if moved is not None:
                yield f"worker {rank} computes", moved
            for layer in range(self.layers):
                if worker.nodes[layer].stage is Stage.SUMMING:
                    yield f"worker {rank} sums layer {layer}", self._sum(world, rank, layer)
        for put in world.network:
            yield f"{put} arrives", self._deliver(world, put, put_stays=False)
            if self.repeats:
                yield f"{put} arrives, and will again", self._deliver(world, put, put_stays=True)

    def _version(self, worker: Worker) -> int:
        version = FIRST
        for _ in range(worker.place // (2 * self.layers)):
            version = next_value(version)
        return version

    def _compute(self, world: World, rank: int, worker: Worker) -> World | None:
        step = worker.place % (2 * self.layers)
        if worker.place == self.iterations * 2 * self.layers:
            return None
        version = self._version(worker)
        layer = step if step < self.layers else 2 * self.layers - 1 - step
        node = worker.nodes[layer]
        if step < self.layers and node.version != version:
            return None  # the layer waits for its parameters
        assert worker.values[layer] == version, "a pass found other values than its iteration's"
        worker = replace(worker, place=worker.place + 1)
        if step < self.layers:
            return _with(world, rank, worker)
        node, _ = protocol.offered(node)
        return _with(world, rank, replace(worker, nodes=_set(worker.nodes, layer, node)))

    def _sum(self, world: World, rank: int, layer: int) -> World:
        worker = world.workers[rank]
        node = worker.nodes[layer]
        contents = [content for _, content in worker.slots[layer]]
        assert None not in contents, "a sum was begun before everything had come"
        total = frozenset({(rank, node.coming)}).union(*contents)  # type: ignore[arg-type]
        assert len(total) == 1 + sum(len(content) for content in contents), "a gradient was added twice"  # type: ignore[arg-type]
        emptied = tuple((child, None) for child, _ in worker.slots[layer])
        worker = replace(worker, slots=_set(worker.slots, layer, emptied))
        node = protocol.summed(node)
        if node.parent is not None:
            put = Put(rank, node.parent, layer, total, node.coming)
            return _with(world, rank, replace(worker, nodes=_set(worker.nodes, layer, node)), put)
        assert total == {(other, node.coming) for other in range(self.size)}, "not one gradient of every worker"
        self._check_unread(worker, layer)
        node = protocol.applied(node)
        worker = replace(worker, nodes=_set(worker.nodes, layer, node), values=_set(worker.values, layer, node.version))
        return _with(world, rank, worker, *self._down(rank, layer, node))

    def _down(self, rank: int, layer: int, node: Node) -> list[Put]:
        return [Put(rank, child, layer, node.version, node.version) for child in node.children]

    def _check_unread(self, worker: Worker, layer: int) -> None:
        """Nobody is between the forward and the backward pass of the layer."""
        step = worker.place % (2 * self.layers)
        assert not layer < step <= 2 * self.layers - 1 - layer, "values were written while a pass needed the old ones"

    def _deliver(self, world: World, put: Put, *, put_stays: bool) -> World:
        worker, layer = world.workers[put.target], put.layer
        node = worker.nodes[layer]
        network = world.network if put_stays else world.network - {put}
        is_late = put.version != node.coming
        if node.parent == put.source:
            node, act = protocol.values_arrived(node, put.version)
            if act is Act.NOTHING:
                assert is_late
                return replace(world, network=network)
            self._check_unread(worker, layer)
            assert isinstance(put.content, int)
            worker = replace(
                worker, nodes=_set(worker.nodes, layer, node), values=_set(worker.values, layer, put.content)
            )
            world = _with(replace(world, network=network), put.target, worker)
            return replace(world, network=world.network.union(self._down(put.target, layer, node)))
        slots = dict(worker.slots[layer])
        is_again = put.source in node.arrived or node.stage is not Stage.GATHERING
        if not is_late and not is_again:  # the bytes of a repeated notification do not come again
            assert slots[put.source] is None, "a slot was written before it was read"
            assert isinstance(put.content, frozenset)
            slots[put.source] = put.content
        node, _ = protocol.sum_arrived(node, put.source, put.version)
        worker = replace(
            worker, nodes=_set(worker.nodes, layer, node), slots=_set(worker.slots, layer, tuple(slots.items()))
        )
        return _with(replace(world, network=network), put.target, worker)


def _set(items: tuple, place: int, item: object) -> tuple:
    return (*items[:place], item, *items[place + 1 :])


def _with(world: World, rank: int, worker: Worker, *puts: Put) -> World:
    return World(_set(world.workers, rank, worker), world.network.union(puts))


# -- every order ------------------------------------------------------------------------------------------------------
TREES = {
    "chains": [flow(0, 0, 3, 1), flow(1, 1, 3, 1)],
    "stars": [flow(0, 0, 3, 2), flow(1, 2, 3, 2)],
}


@pytest.mark.parametrize("shape", TREES)
def test_every_order_of_three_workers_and_two_layers(shape):
    model = Model(3, TREES[shape], iterations=2)
    edge, seen, ends = [model.start()], {model.start()}, 0
    while edge:
        world = edge.pop()
        successors = [after for _, after in model.steps(world)]
        if not successors:
            assert model.is_end(world), "nothing can happen, and not all is done"
            ends += 1
        for after in successors:
            if after not in seen:
                seen.add(after)
                edge.append(after)
    assert ends == 1  # whatever the order, all end alike
    assert len(seen) > 1000


# -- many orders ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(60))
def test_seeded_orders_with_repeated_notifications(seed):
    draw = random.Random(seed)
    size, layers, iterations = draw.randint(2, 7), draw.randint(1, 4), draw.randint(2, 5)
    flows = [flow(layer, draw.randrange(size), size, draw.randint(1, size)) for layer in range(layers)]
    model = Model(size, flows, iterations, repeats=True)
    world = model.start()
    for _ in range(100_000):
        steps = list(model.steps(world))
        if model.is_end(world) and (not steps or draw.random() < 0.1):
            return
        what, after = draw.choice(steps)
        world = after
    pytest.fail(f"not over after very many steps: {what}")


def test_a_forged_version_is_an_error():
    node = Node(None, (1,), 5)
    with pytest.raises(TransportError, match="rank 1's gradient of version 7 came while version 6"):
        protocol.sum_arrived(node, 1, 7)
    with pytest.raises(TransportError, match="values of version 7 came while version 6"):
        protocol.values_arrived(Node(0, (), 5), 7)
    with pytest.raises(TransportError, match="values of version 6 came before this worker's sum"):
        protocol.values_arrived(Node(0, (), 5), 6)
    once, _ = protocol.offered(Node(0, (1,), 5))
    with pytest.raises(TransportError, match="a gradient was offered twice for version 6"):
        protocol.offered(once)


# -- gatherings -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(40))
def test_gatherings_never_overwrite_a_block_that_is_needed(seed):
    """Everybody sends blocks to everybody, two slots each; late copies of notifications come at any time."""
    draw = random.Random(seed)
    size, rounds = draw.randint(2, 5), 6
    everybody = frozenset(range(size))
    state = [Gathering(everybody - {rank}, FIRST) for rank in range(size)]
    slots: dict[tuple[int, int, int], int] = {}
    read = [0] * size
    network: list[tuple[int, int, int, int]] = []
    late: list[tuple[int, int, int]] = []
    while min(read) < rounds:
        rank = draw.randrange(size)
        mine = state[rank]
        if network and draw.random() < 0.6:
            source, target, turn, version = network.pop(draw.randrange(len(network)))
            held = slots.get((target, source, turn))
            assert held is None, "a block was written before it was read"
            slots[target, source, turn] = version
            state[target] = protocol.block_arrived(state[target], source, version)
            late.append((source, target, version))
        elif late and draw.random() < 0.3:
            source, target, version = draw.choice(late)
            state[target] = protocol.block_arrived(state[target], source, version)
        elif mine.is_complete:
            for source in mine.others:
                assert slots.pop((rank, source, mine.turn)) == mine.coming
            state[rank] = protocol.block_read(mine)
            read[rank] += 1
        elif not mine.has_own and read[rank] < rounds:
            state[rank] = protocol.own_block(mine)
            network += [(rank, other, mine.turn, mine.coming) for other in mine.others]
    assert read == [rounds] * size


def test_a_block_from_too_far_ahead_is_an_error():
    with pytest.raises(TransportError, match="rank 1's block of version 8 came while version 6"):
        protocol.block_arrived(Gathering(frozenset({1}), 5), 1, 8)
