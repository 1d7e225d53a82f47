"""Another batch size for a net, set in its spec before it is built: each worker's share, not the sum over workers."""

from __future__ import annotations

from poseidon.errors import UsageError
from poseidon.spec import NetSource

_BATCHED = {
    "Data": "data_param",
    "ImageData": "image_data_param",
    "WindowData": "window_data_param",
    "HDF5Data": "hdf5_data_param",
    "MemoryData": "memory_data_param",
}
_SHAPED = {"Input": "input_param", "DummyData": "dummy_data_param"}


def set_batch(source: NetSource, batch: int) -> None:
    """Changes every layer that feeds the net; Input and DummyData along the first axis of their shapes."""
    changed = False
    for layer in source.net.layer:
        if layer.type in _BATCHED:
            getattr(layer, _BATCHED[layer.type]).batch_size = batch
            changed = True
        elif layer.type in _SHAPED:
            options = getattr(layer, _SHAPED[layer.type])
            for shape in options.shape:
                if shape.dim:
                    shape.dim[0] = batch
                    changed = True
            if layer.type == "DummyData" and options.num:
                options.num[:] = [batch] * len(options.num)
                changed = True
    if not changed:
        kinds = ", ".join([*_BATCHED, *_SHAPED])
        raise UsageError(f"{source.filename}: cannot set a batch of {batch}: the net has no layer of {kinds}")


def batch_of(source: NetSource) -> int:
    """The batch of the first layer that feeds the net."""
    for layer in source.net.layer:
        if layer.type in _BATCHED and getattr(layer, _BATCHED[layer.type]).batch_size:
            return int(getattr(layer, _BATCHED[layer.type]).batch_size)
        if layer.type in _SHAPED:
            options = getattr(layer, _SHAPED[layer.type])
            if options.shape and options.shape[0].dim:
                return int(options.shape[0].dim[0])
            if layer.type == "DummyData" and options.num:
                return int(options.num[0])
    kinds = ", ".join([*_BATCHED, *_SHAPED])
    raise UsageError(f"{source.filename}: cannot tell the batch: the net has no layer of {kinds} that says one")
