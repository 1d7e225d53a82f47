"""caffe.Net: pycaffe's face of `poseidon.Net`, run layer by layer so that blobs and diffs can be seen and edited."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from caffe import settings
from caffe.failures import CallError, OwnExceptions, need_file
from poseidon.net.array_blob import ArrayBlob, ParamBlob
from poseidon.net.layer import Layer
from poseidon.net.layers.memory_data import MemoryData
from poseidon.net.layers.python import Python, PythonLayerBase
from poseidon.net.net import Net as PoseidonNet
from poseidon.net.sharing import share_params
from poseidon.net.stepwise import LayerCallback, Stepwise

Arrays = dict[str, np.ndarray]
FilePath = str | os.PathLike[str]


class LayerFace:
    """One of the net's built-in layers: its type and its parameters."""

    def __init__(self, layer: Layer) -> None:
        self.type = layer.type_name
        self.blobs: list[ArrayBlob] = [ParamBlob(layer, index) for index in range(layer.num_params)]


class Net:
    """Net(file, phase, level=0, stages=None, weights=None), or the older Net(file, weights, phase)."""

    def __init__(
        self,
        network_file: FilePath,
        *given: Any,
        phase: int | None = None,
        level: int = 0,
        stages: Sequence[str] | None = None,
        weights: FilePath | None = None,
    ) -> None:
        if given and isinstance(given[0], (str, os.PathLike)):
            weights, given = given[0], given[1:]
        named: dict[str, Any] = {"phase": phase, "level": level, "stages": stages, "weights": weights}
        options = named | dict(zip(named, given, strict=False))
        if len(given) > len(named) or options["phase"] is None:
            raise TypeError(
                "caffe.Net takes a file and a phase (caffe.TRAIN or caffe.TEST), then level, stages and weights; "
                f"got {1 + len(given)} positional argument(s)"
                + ("" if options["phase"] is not None else " and no phase")
            )
        need_file(network_file, "the net")
        if options["weights"] is not None:
            need_file(options["weights"], "its weights")
        with OwnExceptions():
            net = PoseidonNet(
                os.fspath(network_file),
                options["weights"],
                int(options["phase"]),
                level=int(options["level"]),
                stages=tuple(options["stages"] or ()),
                seed=settings.next_seed(),
            )
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
        self._layer_names = [node.layer.name for node in run.nodes]
        self.layers: list[LayerFace | PythonLayerBase] = [
            node.layer.user if isinstance(node.layer, Python) else LayerFace(node.layer) for node in run.nodes
        ]
        self.blobs = OrderedDict(run.faces)
        self.params = OrderedDict(
            (name, layer.blobs) for name, layer in zip(self._layer_names, self.layers, strict=True) if layer.blobs
        )
        self.layer_dict = OrderedDict(zip(self._layer_names, self.layers, strict=True))
        self.inputs = self._net.inputs
        self.outputs = self._net.outputs
        self.top_names = OrderedDict((node.layer.name, list(node.tops)) for node in run.nodes)
        self.bottom_names = OrderedDict((node.layer.name, list(node.bottoms)) for node in run.nodes)

    # -- what the net consists of, by number ------------------------------------------------------------------------
    @property
    def name(self) -> str:
        return self._net.name

    @property
    def _blob_names(self) -> list[str]:
        return list(self.blobs)

    @property
    def _blobs(self) -> list[ArrayBlob]:
        return list(self.blobs.values())

    @property
    def _inputs(self) -> list[int]:
        return [self._blob_names.index(name) for name in self.inputs]

    @property
    def _outputs(self) -> list[int]:
        return [self._blob_names.index(name) for name in self.outputs]

    def _top_ids(self, layer: int) -> list[int]:
        return [self._blob_names.index(name) for name in self._run.nodes[layer].tops]

    def _bottom_ids(self, layer: int) -> list[int]:
        return [self._blob_names.index(name) for name in self._run.nodes[layer].bottoms]

    @property
    def _blob_loss_weights(self) -> list[float]:
        return list(self.blob_loss_weights.values())

    @property
    def blob_loss_weights(self) -> OrderedDict[str, float]:
        weights = OrderedDict.fromkeys(self.blobs, 0.0)
        for node in self._run.nodes:
            weights.update(zip(node.tops, node.loss_weights, strict=True))
        return weights

    # -- running ----------------------------------------------------------------------------------------------------
    def forward(
        self, blobs: Sequence[str] | None = None, start: str | None = None, end: str | None = None, **inputs: np.ndarray
    ) -> Arrays:
        """Runs the layers from `start` to `end` (both included) on the inputs given by name, or on what the input
        blobs hold; returns the arrays of the outputs, or of the last layer's tops, and of `blobs`."""
        first = 0 if start is None else self._index(start)
        last = len(self.layers) - 1 if end is None else self._index(end)
        wanted = [*(self.outputs if end is None else self.top_names[end]), *(blobs or ())]
        if inputs:
            if set(inputs) != set(self.inputs):
                raise CallError(f"Input blob arguments do not match net inputs: got {_names(inputs)}, "
                                f"expected {_names(self.inputs)}")  # fmt: skip
            for name, value in inputs.items():
                self._fill(name, self.blobs[name].data, value)
        self._forward(first, last)
        return {name: self._blob(name).data for name in wanted}

    def backward(
        self, diffs: Sequence[str] | None = None, start: str | None = None, end: str | None = None, **given: np.ndarray
    ) -> Arrays:
        """Runs the layers from `start` down to `end` (both included) from the outputs' diffs, given by name or as
        they are; returns the diffs of the inputs, or of the last layer's bottoms, and of `diffs`."""
        first = len(self.layers) - 1 if start is None else self._index(start)
        last = 0 if end is None else self._index(end)
        wanted = [*(self.inputs if end is None else self.bottom_names[end]), *(diffs or ())]
        if given:
            if set(given) != set(self.outputs):
                raise CallError(f"Top diff arguments do not match net outputs: got {_names(given)}, "
                                f"expected {_names(self.outputs)}")  # fmt: skip
            for name, value in given.items():
                self._fill(name, self.blobs[name].diff, value)
        self._backward(first, last)
        return {name: self._blob(name).diff for name in wanted}

    def _forward(self, first: int, last: int) -> float:
        with OwnExceptions():
            return self._run.forward(first, last)

    def _backward(self, first: int, last: int) -> None:
        with OwnExceptions():
            self._run.backward(first, last)

    def forward_all(self, blobs: Sequence[str] | None = None, **inputs: np.ndarray) -> Arrays:
        """Runs any number of samples through the net, batch by batch; the last one is padded with zeros."""
        collected: dict[str, list[np.ndarray]] = {}
        for batch in self._batch(inputs):
            _collect(collected, self.forward(blobs, None, None, **batch))
        return _joined(collected, _length(inputs))

    def forward_backward_all(
        self, blobs: Sequence[str] | None = None, diffs: Sequence[str] | None = None, **given: np.ndarray
    ) -> tuple[Arrays, Arrays]:
        """Runs any number of samples through the net and back; `given` holds inputs and diffs of outputs by name."""
        forwards = self._batch({name: given[name] for name in self.inputs if name in given})
        backwards = self._batch({name: given[name] for name in self.outputs if name in given})
        values: dict[str, list[np.ndarray]] = {}
        gradients: dict[str, list[np.ndarray]] = {}
        nothing: Arrays = {}
        for inputs, tops in zip_longest(forwards, backwards, fillvalue=nothing):
            _collect(values, self.forward(blobs, None, None, **inputs))
            _collect(gradients, self.backward(diffs, None, None, **tops))
        return _joined(values, _length(given)), _joined(gradients, _length(given))

    def _batch(self, given: Mapping[str, np.ndarray]) -> Iterator[Arrays]:
        """The samples in portions of the net's batch size."""
        if not given:
            return
        size = next(iter(self.blobs.values())).shape[0]
        for begin in range(0, _length(given), size):
            batch = {name: np.asarray(values[begin : begin + size]) for name, values in given.items()}
            lacking = size - _length(batch)
            if lacking:
                batch = {
                    name: np.concatenate([values, np.zeros((lacking, *values.shape[1:]), values.dtype)])
                    for name, values in batch.items()
                }
            yield batch

    def before_forward(self, callback: LayerCallback) -> None:
        """Calls back with each layer's index before it runs; likewise the three below."""
        self._run.callbacks.before_forward.append(callback)

    def after_forward(self, callback: LayerCallback) -> None:
        self._run.callbacks.after_forward.append(callback)

    def before_backward(self, callback: LayerCallback) -> None:
        self._run.callbacks.before_backward.append(callback)

    def after_backward(self, callback: LayerCallback) -> None:
        self._run.callbacks.after_backward.append(callback)

    # -- shapes, parameters, data -----------------------------------------------------------------------------------
    def reshape(self) -> None:
        """Carries the shapes of the input blobs through the net."""
        with OwnExceptions():
            self._run.reshape()

    def clear_param_diffs(self) -> None:
        for parameter in self._net.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()

    def copy_from(self, path: FilePath) -> None:
        """Takes over the weights of the layers of the same name from a .caffemodel or HDF5 file."""
        need_file(path, "weights")
        self._net.load(os.fspath(path))

    def load_hdf5(self, path: FilePath) -> None:
        self.copy_from(path)

    def save(self, path: FilePath) -> None:
        """Writes a .caffemodel, whatever the name."""
        self._net.save(os.fspath(path), hdf5=False)

    def save_hdf5(self, path: FilePath) -> None:
        """Writes HDF5, whatever the name."""
        self._net.save(os.fspath(path), hdf5=True)

    def share_with(self, other: Net) -> None:
        """Uses the parameters of the other net's layers of the same name from now on: the same memory."""
        share_params(self._net, other._net)

    def set_input_arrays(self, data: np.ndarray, labels: np.ndarray) -> None:
        """Gives the net's MemoryData layer what to serve next."""
        layer = next((layer for layer in self._net.layers.values() if isinstance(layer, MemoryData)), None)
        if layer is None:
            raise CallError("set_input_arrays needs a net with a MemoryData layer, got one without")
        layer.reset(data, labels)

    # -- inside -----------------------------------------------------------------------------------------------------
    def _index(self, layer_name: str) -> int:
        try:
            return self._layer_names.index(layer_name)
        except ValueError:
            known = _names(self._layer_names)
            raise ValueError(f"{layer_name!r} is not a layer of the net (layers: {known})") from None

    def _blob(self, name: str) -> ArrayBlob:
        try:
            return self.blobs[name]
        except KeyError:
            raise KeyError(f"{name!r} is not a blob of the net (blobs: {_names(self.blobs)})") from None

    @staticmethod
    def _fill(name: str, target: np.ndarray, value: np.ndarray) -> None:
        value = np.asarray(value)
        if value.shape[:1] != target.shape[:1]:
            raise CallError(
                f"Input is not batch sized: {name!r} takes {target.shape}, got {value.shape}; "
                f"reshape the blob first, or use forward_all"
            )
        target[...] = value


def _names(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(names) or "none"


def _length(arrays: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(arrays.values()))) if arrays else 0


def _collect(into: dict[str, list[np.ndarray]], arrays: Arrays) -> None:
    for name, array in arrays.items():
        into.setdefault(name, []).append(array.copy())


def _joined(collected: Mapping[str, list[np.ndarray]], length: int) -> Arrays:
    """All batches as one array, without the padding; outputs that are one value per batch stay one per batch."""
    return {
        name: np.concatenate(parts)[:length] if parts[0].ndim else np.stack(parts) for name, parts in collected.items()
    }
