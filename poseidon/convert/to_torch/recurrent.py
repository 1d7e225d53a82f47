"""LSTM, RNN and LSTMUnit. States that the net does not expose begin at zero in every call."""

from __future__ import annotations

from poseidon.convert.to_torch import parts
from poseidon.convert.to_torch.writing import Writing, arguments
from poseidon.net.layers.recurrent import Recurrent


def lstm(w: Writing) -> str:
    return _recurrent(w, parts.LSTM, {"hidden.weight": -1})


def rnn(w: Writing) -> str:
    return _recurrent(w, parts.RNN, {"hidden.weight": -3, "outputs.weight": -2, "outputs.bias": -1})


def lstm_unit(w: Writing) -> str:
    return f"{w.part(parts.lstm_unit)}({', '.join(w.inputs)})"


def _recurrent(w: Writing, part: type, behind: dict[str, int]) -> str:
    """`behind`: parameters of the module by their place among the layer's blobs, from the end."""
    layer = w.layer
    assert isinstance(layer, Recurrent)
    tensors = {"inputs.weight": w.param_value(0), "inputs.bias": w.param_value(1)}
    if layer.has_static:
        tensors["static.weight"] = w.param_value(2)
    tensors |= {name: w.param_value(layer.num_params + index) for name, index in behind.items()}
    num_static = layer.param_shapes[2][1] if layer.has_static else None
    given = arguments(layer.param_shapes[0][1], w.spec.recurrent_param.num_output, num_static=num_static)
    module = w.module(f"{w.part(part)}({given})", **tensors)
    states = w.inputs[-layer.num_states :] if layer.exposes_states else []
    named = dict(zip(("h", "c"), states, strict=False))
    static = w.inputs[2] if layer.has_static else None
    y = f"{module}({arguments(*w.inputs[:2], static=static, **named)})"
    return y if layer.exposes_states else f"{y}[0]"
