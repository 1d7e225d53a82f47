"""Net: a Caffe net as an nn.Module.

    net = Net("deploy.prototxt", "model.caffemodel", phase="TEST")
    out = net(data=images)                 # {"prob": tensor}; out.loss is the weighted sum of all losses, or None

A forward pass is one autograd graph, so training runs as fast as the same net written by hand. Blob diffs and partial
passes are served by `poseidon.net.stepwise` from the same layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import poseidon.net.layers  # noqa: F401  (registers every built-in layer)
from poseidon.errors import NetError, UsageError
from poseidon.net.draws import Draws
from poseidon.net.graph import Graph
from poseidon.net.layer import Layer, LayerContext, Shape
from poseidon.net.memory import MemoryBudget
from poseidon.net.params import ParamEntry
from poseidon.net.program import Program
from poseidon.net.weights import WeightsReport, copy_embedded, load_weights, save_weights
from poseidon.spec import NetSource, caffe_pb2, filter_net, insert_splits, net_source, parse_net, read_net

PHASES = {"TRAIN": caffe_pb2.TRAIN, "TEST": caffe_pb2.TEST}


class NetOutputs(dict[str, Tensor]):
    """Blob name -> tensor, with the net's total loss beside them."""

    loss: Tensor | None = None


class Net(nn.Module):
    """A net built for one phase, level and set of stages.

    source         path of a prototxt, a NetParameter, or a NetSource (`poseidon.spec.parse_net` for text)
    weights        a .caffemodel or .caffemodel.h5 to start from
    phase          "TRAIN" or "TEST"
    seed           names all random draws: fillers, dropout, ... (None: a fresh one, to be read in `net.draws.seed`)
    channels_last  keep 4-D tensors in NHWC memory order
    autocast       dtype for mixed precision, e.g. torch.bfloat16
    compile        True or the name of a torch.compile backend
    freeze         patterns of layers that shall not learn, e.g. ["conv*"]
    """

    def __init__(
        self,
        source: str | Path | caffe_pb2.NetParameter | NetSource,
        weights: str | Path | None = None,
        phase: str | int = "TEST",
        *,
        level: int = 0,
        stages: Sequence[str] = (),
        seed: int | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
        autocast: torch.dtype | None = None,
        compile: bool | str = False,
        freeze: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.phase = phase_of(phase)
        self.draws = Draws(seed)
        self.source = insert_splits(filter_net(_as_source(source), self.phase, level, tuple(stages)))
        memory = MemoryBudget(torch.device(device))
        context = LayerContext(self.phase, self.source.filename, torch.device(device), dtype, self.draws, memory)
        self.graph = Graph(self.source, context, freeze)
        self.program = Program(self.graph)
        self._memory_format = torch.channels_last if channels_last else None
        self._autocast = autocast
        self._device, self._dtype = context.device, dtype
        self.is_compiled = bool(compile)
        self._run = self._compiled(compile) if compile else self.program.run
        for node in self.graph.nodes:
            self._modules[self._module_name(node.layer.name)] = node.layer
        copy_embedded(self)
        if channels_last:
            for parameter in self.parameters():
                if parameter.dim() == 4:
                    parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        if weights is not None:
            self.load(weights)

    @classmethod
    def from_text(cls, text: str, **options: Any) -> Net:
        """Builds from prototxt text instead of a file."""
        return cls(parse_net(text), **options)

    # -- what the net consists of -----------------------------------------------------------------------------------
    @property
    def name(self) -> str:
        return self.source.net.name

    @property
    def layers(self) -> dict[str, Layer]:
        """Layers by name, in running order (of layers with the same name, the first)."""
        found: dict[str, Layer] = {}
        for node in self.graph.nodes:
            found.setdefault(node.layer.name, node.layer)
        return found

    @property
    def params(self) -> dict[str, list[nn.Parameter]]:
        """Parameter blobs by layer name, in Caffe's order; a shared blob stands at every sharer."""
        return {
            name: [layer.param_owner(i) for i in range(layer.num_params)]
            for name, layer in self.layers.items()
            if layer.num_params
        }

    @property
    def learnable(self) -> list[ParamEntry]:
        """Every parameter once, with its rate and decay multipliers."""
        return self.graph.params.entries

    @property
    def inputs(self) -> list[str]:
        return list(self.graph.inputs)

    @property
    def outputs(self) -> list[str]:
        return list(self.graph.outputs)

    @property
    def blob_shapes(self) -> dict[str, Shape]:
        return dict(self.graph.shapes)

    @property
    def device(self) -> torch.device:
        """Where the parameters are, also after `net.to(...)`."""
        first = next(self.parameters(), None)
        return self._device if first is None else first.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the inputs and parameters the net was built for."""
        return self._dtype

    def __str__(self) -> str:
        phase = caffe_pb2.Phase.Name(self.phase)
        return f"net {self.name!r} ({phase})\n{self.graph.describe()}"

    # -- running ----------------------------------------------------------------------------------------------------
    def forward(
        self, inputs: Mapping[str, Tensor] | None = None, /, *, keep: Iterable[str] = (), **named: Tensor
    ) -> NetOutputs:
        """One pass. Input blobs are given by name; `keep` names further blobs to return beside the outputs."""
        wanted = (*self.graph.outputs, *keep)
        self._check_wanted(wanted)
        values = self._feed({**(inputs or {}), **named})
        if self.program.absorbed.isdisjoint(wanted):
            run = self._run
        else:
            run = Program(self.graph, fuse=False).run
        with self._precision():
            loss = run(values, wanted)
        self.draws.clock += 1
        result = NetOutputs((name, values[name]) for name in dict.fromkeys(wanted))
        result.loss = loss
        return result

    def reshape(self, **shapes: Sequence[int]) -> None:
        """Gives input blobs new shapes and checks that every layer accepts what follows from them."""
        self.graph.reshape({name: tuple(int(n) for n in shape) for name, shape in shapes.items()})

    # -- weights ----------------------------------------------------------------------------------------------------
    def load(self, path: str | Path, *, skip: Sequence[str] = ()) -> WeightsReport:
        """Copies weights by layer name; the report says what matched and what did not.

        `skip`: patterns of layers that stay as they are although the file may have them, e.g. ["fc8"].
        """
        self.settle()
        return load_weights(self, path, skip=skip)

    def save(self, path: str | Path, *, with_diff: bool = False, hdf5: bool | None = None) -> None:
        """Writes a .caffemodel, or HDF5 where the name ends in .h5 or `hdf5` says so; Caffe reads both."""
        self.settle()
        save_weights(self, path, with_diff=with_diff, hdf5=hdf5)

    def settle(self) -> None:
        """Returns when all parameters are up to date, where somebody changes them from another thread."""
        for node in self.graph.nodes:
            if node.layer.gate is not None:
                for index in range(node.layer.num_params):
                    node.layer.gate(index)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self.settle()
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self.settle()
        return super().load_state_dict(*args, **kwargs)

    # -- inside -----------------------------------------------------------------------------------------------------
    def _module_name(self, name: str) -> str:
        """A key nn.Module accepts (no dots), unique."""
        key = base = name.replace(".", "_")
        count = 1
        while key in self._modules:
            count += 1
            key = f"{base}#{count}"
        return key

    def _compiled(self, backend: bool | str) -> Any:
        return torch.compile(self.program.run, backend=backend if isinstance(backend, str) else "inductor")

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self._autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self._autocast)

    def _check_wanted(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.graph.shapes:
                raise NetError(f"the net has no blob {name!r} (blobs: {', '.join(self.graph.shapes)})")

    def _feed(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The blobs of all layers that read none: inputs as given, data layers' next batch."""
        self._accept_shapes(given)
        values: dict[str, Tensor] = {}
        for node in self.program.feeds:
            if node.layer.type_name == "Input":
                made = tuple(self._placed(given[name]) for name in node.tops)
            else:
                made = self.program.feed(node)
                made = made if isinstance(made, tuple) else (made,)
                if not node.layer.num_params:
                    made = tuple(self._placed(value) for value in made)
            values.update(zip(node.tops, made, strict=True))
        return values

    def _accept_shapes(self, given: Mapping[str, Tensor]) -> None:
        missing = [name for name in self.graph.inputs if name not in given]
        unknown = [name for name in given if name not in self.graph.inputs]
        if missing or unknown:
            raise NetError(
                f"the net takes the inputs {', '.join(self.graph.inputs) or 'none'}"
                + (f"; missing: {', '.join(missing)}" if missing else "")
                + (f"; unknown: {', '.join(unknown)}" if unknown else "")
            )
        changed = {}
        for name, value in given.items():
            if not isinstance(value, Tensor):
                raise NetError(f"input {name!r} must be a torch tensor, got {type(value).__name__}")
            if value.shape != self.graph.shapes[name]:
                changed[name] = tuple(value.shape)
        if changed:
            self.graph.reshape(changed)

    def _placed(self, value: Tensor) -> Tensor:
        dtype = value.dtype if not value.is_floating_point() else self._dtype
        value = value.to(self.device, dtype, non_blocking=True)
        if self._memory_format is not None and value.dim() == 4:
            value = value.contiguous(memory_format=self._memory_format)
        return value


def phase_of(phase: str | int) -> caffe_pb2.Phase:
    """TRAIN or TEST by name or by number."""
    if isinstance(phase, str) and phase.upper() in PHASES:
        return PHASES[phase.upper()]
    for known in PHASES.values():
        if phase == known:
            return known
    raise UsageError(f"phase must be TRAIN or TEST, got {phase!r}")


def _as_source(source: str | Path | caffe_pb2.NetParameter | NetSource) -> NetSource:
    if isinstance(source, NetSource):
        return source
    if isinstance(source, caffe_pb2.NetParameter):
        return net_source(source)
    return read_net(source)
