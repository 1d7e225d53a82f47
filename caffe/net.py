"""caffe.Net: pycaffe's face of `poseidon.Net`, run layer by layer so that blobs and diffs can be seen and edited."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch

from caffe.blob import Blob, ParamBlob
from poseidon.errors import UsageError
from poseidon.net.layers.memory_data import MemoryData
from poseidon.net.net import Net as PoseidonNet
from poseidon.net.stepwise import Stepwise


class Net:
    """Net(model, phase, level=0, stages=(), weights=None), or the older Net(model, weights, phase)."""

    def __init__(
        self,
        model: str,
        *args: str | int,
        phase: int | None = None,
        level: int = 0,
        stages: Sequence[str] | None = None,
        weights: str | None = None,
    ) -> None:
        for argument in args:
            if isinstance(argument, str):
                weights = argument
            else:
                phase = argument
        if phase is None:
            raise TypeError("caffe.Net needs a phase: caffe.TRAIN or caffe.TEST")
        net = PoseidonNet(model, weights, phase, level=level, stages=tuple(stages or ()))
        self._wrap(Stepwise(net))

    @classmethod
    def around(cls, run: Stepwise) -> Net:
        """The face of a net that exists already, a solver's for instance."""
        made = cls.__new__(cls)
        made._wrap(run)
        return made

    def _wrap(self, run: Stepwise) -> None:
        self._run = run
        self._net = run.net
        self.blobs = OrderedDict((name, Blob(blob)) for name, blob in self._run.blobs.items())
        self.params = OrderedDict(
            (name, [ParamBlob(layer.param_owner(i), layer.param_shapes[i]) for i in range(layer.num_params)])
            for name, layer in self._net.layers.items()
            if layer.num_params
        )

    @property
    def inputs(self) -> list[str]:
        return self._net.inputs

    @property
    def outputs(self) -> list[str]:
        return self._net.outputs

    @property
    def _layer_names(self) -> list[str]:
        return [node.layer.name for node in self._run.nodes]

    def forward(self) -> dict[str, np.ndarray]:
        """Runs all layers; returns the outputs' arrays by name."""
        self._run.forward()
        return {name: self.blobs[name].data for name in self.outputs}

    def backward(self) -> dict[str, np.ndarray]:
        """Runs all layers backwards from the diffs of the outputs; returns the inputs' diffs by name."""
        self._run.backward()
        return {name: self.blobs[name].diff for name in self.inputs}

    def reshape(self) -> None:
        """Carries the shapes of the input blobs through the net."""
        shapes = {name: self._run.blobs[name].shape for name in self._net.inputs}
        self._net.reshape(**shapes)
        for name, shape in self._net.blob_shapes.items():
            self._run.blobs[name].reshape(shape)

    def clear_param_diffs(self) -> None:
        for parameter in self._net.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()

    def copy_from(self, path: str) -> None:
        self._net.load(path)

    def save(self, path: str) -> None:
        self._net.save(path)

    def set_input_arrays(self, data: np.ndarray, labels: np.ndarray) -> None:
        """Gives the net's MemoryData layer what to serve next."""
        layer = next((layer for layer in self._net.layers.values() if isinstance(layer, MemoryData)), None)
        if layer is None:
            raise UsageError("set_input_arrays needs a net with a MemoryData layer, got one without")
        layer.reset(torch.from_numpy(data), torch.from_numpy(labels))
