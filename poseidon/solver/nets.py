"""Which nets a solver trains and tests, as its settings name them.

    train net   exactly one of net, net_param, train_net, train_net_param
    test nets   test_net_param each, then test_net each, then net or net_param once for every test_iter that is left

Each is built in a state merged from, lowest first: the phase, the net's own `state`, the solver's train_state or
test_state. Test nets read the train net's parameters, not copies of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch

from poseidon.errors import SolverError
from poseidon.net.draws import key_of
from poseidon.net.net import Net
from poseidon.spec import NetSource, caffe_pb2, net_source, read_net

_TRAIN_FIELDS = ("net", "net_param", "train_net", "train_net_param")


@dataclass(frozen=True, slots=True)
class NetOptions:
    """How the solver's nets are to compute; see Net. `renew`: layers that do not start from the solver's `weights`."""

    device: str | torch.device = "cpu"
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    autocast: torch.dtype | None = None
    compile: bool | str = False
    freeze: tuple[str, ...] = ()
    renew: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NetChoice:
    """A net to be built: where it is written (`origin` in Caffe's words), how to get it, and in which state."""

    origin: str
    read: Callable[[], NetSource]
    phase: caffe_pb2.Phase
    extra_state: caffe_pb2.NetState = field(default_factory=caffe_pb2.NetState)

    def state(self, source: NetSource) -> caffe_pb2.NetState:
        """The state to build the net in."""
        state = caffe_pb2.NetState(phase=self.phase)
        state.MergeFrom(source.net.state)
        state.MergeFrom(self.extra_state)
        return state

    def build(self, source: NetSource, seed: int, options: NetOptions) -> Net:
        state = self.state(source)
        return Net(
            source,
            phase=state.phase,
            level=state.level,
            stages=list(self.extra_state.stage),  # the net keeps the stages of its own `state` by itself
            seed=seed,
            device=options.device,
            dtype=options.dtype,
            channels_last=options.channels_last,
            autocast=options.autocast,
            compile=options.compile,
            freeze=options.freeze if state.phase == caffe_pb2.TRAIN else (),
        )


def train_net(param: caffe_pb2.SolverParameter) -> NetChoice:
    """The net to train."""
    given = [name for name in _TRAIN_FIELDS if param.HasField(name)]
    if len(given) != 1:
        raise SolverError(
            f"a solver names its train net in exactly one of {', '.join(_TRAIN_FIELDS)}, "
            f"got {' and '.join(given) or 'none'}"
        )
    name = given[0]
    if name in ("net", "train_net"):
        path = getattr(param, name)
        return NetChoice(f"{name} file: {path}", partial(read_net, path), caffe_pb2.TRAIN, param.train_state)
    message = getattr(param, name)
    return NetChoice(name, partial(net_source, message, f"<{name}>"), caffe_pb2.TRAIN, param.train_state)


def test_nets(param: caffe_pb2.SolverParameter) -> list[NetChoice]:
    """The nets to test, in order; as many as there are test_iter entries."""
    _check_test_counts(param)
    nothing = caffe_pb2.NetState()
    return [
        NetChoice(origin, read, caffe_pb2.TEST, param.test_state[i] if param.test_state else nothing)
        for i, (origin, read) in enumerate(_test_sources(param))
    ]


def _check_test_counts(param: caffe_pb2.SolverParameter) -> None:
    num_named = len(param.test_net) + len(param.test_net_param)
    num_iters = len(param.test_iter)
    has_generic = param.HasField("net") or param.HasField("net_param")
    if num_iters < num_named or (num_iters > num_named and not has_generic):
        raise SolverError(f"test_iter must be given once per test net, got {num_iters} for {num_named} test net(s)")
    if param.test_state and len(param.test_state) != num_iters:
        raise SolverError(
            f"test_state must be given never or once per test net ({num_iters}), got {len(param.test_state)}"
        )
    if num_iters and param.test_interval <= 0:
        raise SolverError(f"a solver with test nets needs a test_interval of at least 1, got {param.test_interval}")


def _test_sources(param: caffe_pb2.SolverParameter) -> Iterator[tuple[str, Callable[[], NetSource]]]:
    for message in param.test_net_param:
        yield "test_net_param", partial(net_source, message, "<test_net_param>")
    for path in param.test_net:
        yield f"test_net file: {path}", partial(read_net, path)
    for _ in range(len(param.test_iter) - len(param.test_net) - len(param.test_net_param)):
        if param.HasField("net"):
            yield f"net file: {param.net}", partial(read_net, param.net)
        else:
            yield "net_param", partial(net_source, param.net_param, "<net_param>")


def test_seed(seed: int, index: int) -> int:
    """The seed of a test net's own draws."""
    return key_of(seed, "test net", index)


def weights_named(param: caffe_pb2.SolverParameter) -> list[str]:
    """The weights to start from, in order: entries of `weights`, each of which may be a comma list."""
    return [name.strip() for entry in param.weights for name in entry.split(",") if name.strip()]
