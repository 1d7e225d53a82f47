"""The PyTorch model of a net: a module of plain torch as text, and the values of its state dict.

model = load("model.safetensors")         what the text itself offers; needs torch and safetensors only
prob = model(images)                      one tensor, or a tuple in the order the docstring says
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poseidon.convert.extents import Dims, Extents
from poseidon.convert.steps import outputs_of, steps_of
from poseidon.convert.table import emitters
from poseidon.convert.to_torch.arithmetic import batch_norm
from poseidon.convert.to_torch.parts import NEEDS
from poseidon.convert.to_torch.writing import ModelSource, Writing
from poseidon.net import Net

_LINE = 120


@dataclass(frozen=True, slots=True)
class TorchModel:
    text: str
    tensors: dict[str, np.ndarray]


def model_of(net: Net, extents: Extents) -> TorchModel:
    source = ModelSource()
    values = {name: source.variable(name) for name in net.inputs}
    inputs = dict(values)
    for step in steps_of(net, extents):
        layer = step.node.layer
        if layer.type_name == "Input":
            continue
        writing = Writing(source, layer, [values[name] for name in step.node.bottoms], step)
        if step.scale is None:
            made = emitters(layer).torch(writing)
        else:
            made = batch_norm(writing, *step.scale_values())
        _assign(source, step.node.tops, made, values)
    outputs = list(outputs_of(net))
    text = _text(net, extents, source, list(inputs.values()), {name: values[name] for name in outputs})
    return TorchModel(text, source.tensors)


def _assign(source: ModelSource, tops: tuple[str, ...], made: str | list[str], values: dict[str, str]) -> None:
    """One line per expression; a top that is a variable already needs none."""
    if isinstance(made, str) and len(tops) > 1:
        names = [_free_variable(source, top, values) for top in tops]
        source.lines.append(f"{', '.join(names)} = {made}")
        values.update(zip(tops, names, strict=True))
        return
    for top, expression in zip(tops, [made] if isinstance(made, str) else made, strict=True):
        if expression.isidentifier():
            values[top] = expression
            continue
        name = _free_variable(source, top, values)
        source.lines.append(f"{name} = {expression}")
        values[top] = name


def _free_variable(source: ModelSource, top: str, values: dict[str, str]) -> str:
    """The blob's variable, unless other blobs still stand for its present value (a Split in front of it)."""
    name = source.variable(top)
    others = {value for blob, value in values.items() if blob != top}
    return source.variable(f"{top} after {len(source.lines)}") if name in others else name


# -- the text -------------------------------------------------------------------------------------------------------
def _text(net: Net, extents: Extents, source: ModelSource, inputs: list[str], outputs: dict[str, str]) -> str:
    name = _class_name(net.name)
    results = ", ".join(outputs.values())
    body = "\n".join(_wrapped(line) for line in source.lines)
    members = "\n".join(["super().__init__()", *source.members])
    return (
        f"{_docstring(net, extents, list(outputs))}\n"
        "from pathlib import Path\n\nimport torch\nimport torch.nn.functional as F\n"
        "from safetensors.torch import load_file\nfrom torch import nn\n\n\n"
        + "".join(f"{_source_of(part)}\n\n\n" for part in _with_needed(source.parts))
        + f"class {name}(nn.Module):\n"
        f"    def __init__(self):\n{textwrap.indent(members, '        ')}\n\n"
        f"    def forward(self, {', '.join(inputs)}):\n{textwrap.indent(body, '        ')}\n"
        f"        return {results}\n\n\n"
        f'def load(path=Path(__file__).with_suffix(".safetensors")):\n'
        f'    """The model with its weights, ready to be used."""\n'
        f"    model = {name}()\n    model.load_state_dict(load_file(path))\n    return model.eval()\n"
    )


def _docstring(net: Net, extents: Extents, outputs: list[str]) -> str:
    title = _plain(net.name or "A net")
    where = _plain(Path(net.source.filename).name)
    lines = [f'"""{title}, written by `poseidon export` from {where}. Needs torch and safetensors.', ""]
    width = max(len(_plain(name)) for name in (*net.inputs, *outputs))
    for what, names in (("takes", net.inputs), ("gives", outputs)):
        for name in names:
            lines.append(f"    {what}  {_plain(name):{width}}  {_dims_text(extents.dims[name])}")
    return "\n".join([*lines, '"""', ""])


def _plain(text: str) -> str:
    """Text from a prototxt that may stand in a docstring."""
    return re.sub(r"[^\w ./+-]", "_", text, flags=re.ASCII)


def _dims_text(dims: Dims) -> str:
    return _plain(" x ".join(map(str, dims))) if dims else "one number"


def _class_name(name: str) -> str:
    words = re.findall(r"[A-Za-z0-9]+", name)
    made = "".join(word[:1].upper() + word[1:] for word in words) or "Net"
    made = f"Net{made}" if made[0].isdigit() else made
    return f"{made}Net" if made in ("LSTM", "RNN", "Path", "F") else made


def _source_of(part: Callable[..., Any]) -> str:
    return textwrap.dedent(inspect.getsource(part)).rstrip()


def _with_needed(parts: list[Callable[..., Any]]) -> list[Callable[..., Any]]:
    ordered: dict[Callable[..., Any], None] = {}
    for part in parts:
        ordered.update(dict.fromkeys(NEEDS.get(part, ())))
        ordered[part] = None
    return list(ordered)


def _wrapped(line: str) -> str:
    """Long lists of variables one per line, as a formatter would have them."""
    match = re.fullmatch(r"(\w+ = torch\.cat\()\[(.*)\](, dim=\d+\))", line)
    if len(line) <= _LINE - 8 or match is None or "(" in match[2]:
        return line
    return f"{match[1]}\n    [{match[2]}]{match[3]}"
