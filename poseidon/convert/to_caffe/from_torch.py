"""A PyTorch module as a Caffe net: the module runs once on sample inputs, and every torch function it calls on the way
is taken down as layers (a TorchFunctionMode sees calls as they are written: F.conv2d, x + y, x.flatten(1)).

    factory    "package.module:factory" or "path/model.py:factory"; called without arguments, it gives an nn.Module.
               Importing it runs its code: it is the user's own.
    weights    a .safetensors file for load_state_dict; nothing pickled is opened

Control flow is followed as the sample takes it. Layers are named after the modules they come from.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from poseidon.convert.to_caffe import torch_arithmetic, torch_layers  # noqa: F401  (fill the table)
from poseidon.convert.to_caffe.builder import Inexpressible, NetBuilder, Value
from poseidon.convert.to_caffe.torch_table import CONSTANT, FUNCTIONS, SILENT
from poseidon.errors import ConvertError, UsageError, WeightsError
from poseidon.net.layer import Shape


def load_module(factory: str, weights: str | None) -> nn.Module:
    """The module in evaluation mode, with its weights."""
    place, colon, name = factory.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"{factory}: expected MODULE:FACTORY, FILE.py:FACTORY or a file that ends in .onnx")
    made = getattr(_imported(place), name, None)
    if not callable(made):
        raise UsageError(f"{factory}: {place} has no function or class {name!r}")
    try:
        module = made()
    except Exception as problem:  # whatever the user's own code raises is the user's to see, as one line
        raise ConvertError(f"{factory}: calling it failed: {type(problem).__name__}: {problem}") from problem
    if not isinstance(module, nn.Module):
        raise UsageError(f"{factory}: gave a {type(module).__name__}, expected a torch.nn.Module")
    if weights is not None:
        _load_weights(module, weights)
    return module.eval()


def _imported(place: str) -> Any:
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(f"imported_{Path(place).stem}", place)
            if spec is None or spec.loader is None or not Path(place).is_file():
                raise UsageError(f"{place}: there is no such file")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        return importlib.import_module(place)
    except UsageError:
        raise
    except Exception as problem:  # importing runs what the user wrote
        raise ConvertError(f"{place}: importing it failed: {type(problem).__name__}: {problem}") from problem


def _load_weights(module: nn.Module, path: str) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        values = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as problem:
        raise WeightsError(f"{path}: not a readable safetensors file: {problem}") from None
    try:
        module.load_state_dict(values)
    except RuntimeError as problem:
        raise WeightsError(f"{path}: does not fit the module: {problem}") from None


def input_names(module: nn.Module, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The module's inputs in its own order, with the shapes given for them."""
    parameters = inspect.signature(module.forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p.name for p in parameters if p.name in names and p.default is p.empty]
    if not names:  # forward(*args): the names are the user's
        names = needed = list(shapes)
    missing = [name for name in needed if name not in shapes]
    unknown = [name for name in shapes if name not in names]
    if missing or unknown or not shapes:
        example = " ".join(f"--shape {name}=1,…" for name in missing or names)
        raise UsageError(f"the module takes {', '.join(names)}; give the shape of every input, as in {example}")
    return {name: shapes[name] for name in names if name in shapes}


class _Recorder(TorchFunctionMode):
    """Takes down what is called. Values are found again by the tensors that stand for them."""

    def __init__(self, net: NetBuilder) -> None:
        super().__init__()
        self.net = net
        self.problems: list[str] = []
        self.module_name: list[str] = []
        self._values: dict[int, Value | None] = {}
        self._alive: list[Tensor] = []  # so that no other tensor gets an address that is still in use

    def bind(self, tensor: Tensor, value: Value | None) -> None:
        self._values[id(tensor)] = value
        self._alive.append(tensor)

    def value_of(self, tensor: Tensor) -> Value | None:
        return self._values.get(id(tensor))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        touched = [item for item in _tensors((args, kwargs)) if id(item) in self._values]
        name = _name_of(func)
        if not touched or not _tensors(result) or name in CONSTANT:
            return result
        if name in SILENT:
            for tensor in _tensors(result):
                self.bind(tensor, self._values[id(touched[0])])
            return result
        self._record(name, args, kwargs, result)
        return result

    def _record(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        where = self.module_name[-1] if self.module_name else ""
        handler = FUNCTIONS.get(name.removesuffix("_") if not name.startswith("__") else name)
        made: Any = None
        try:
            if handler is None:
                raise Inexpressible("has no counterpart among Caffe's layers")
            if not self._is_lost((args, kwargs)):
                made = handler(self.net, where or name.strip("_"), *self._known(args), **self._known(kwargs))
        except (Inexpressible, TypeError) as problem:
            shapes = ", ".join("x".join(map(str, t.shape)) for t in _tensors((args, kwargs)) if id(t) in self._values)
            self.problems.append(f"{where or 'the model'}: {name}({shapes}): {problem}")
        values = made if isinstance(made, list) else [made]
        tensors = list(_tensors(result))
        for tensor, value in zip(
            tensors, values if len(values) == len(tensors) else [None] * len(tensors), strict=True
        ):
            self.bind(tensor, value)

    def _is_lost(self, arguments: Any) -> bool:
        """True if something that could not be expressed goes in: told once, not again."""
        return any(id(item) in self._values and self._values[id(item)] is None for item in _tensors(arguments))

    def _known(self, item: Any) -> Any:
        """Arguments with tensors as blobs or arrays."""
        if isinstance(item, Tensor):
            value = self._values.get(id(item))
            return item.detach().cpu().numpy() if value is None else value
        if isinstance(item, dict):
            return {key: self._known(each) for key, each in item.items()}
        if isinstance(item, (list, tuple)):
            return type(item)(self._known(each) for each in item) if type(item) in (list, tuple) else item
        return item


def _name_of(func: Any) -> str:
    """As it is written; an attribute (x.T) is read by a getter of that name."""
    name = getattr(func, "__name__", str(func))
    return getattr(func.__self__, "__name__", name) if name == "__get__" else name


def _tensors(item: Any) -> list[Tensor]:
    if isinstance(item, Tensor):
        return [item]
    if isinstance(item, dict):
        item = list(item.values())
    return [tensor for each in item for tensor in _tensors(each)] if isinstance(item, (list, tuple)) else []


@contextmanager
def _named_after_modules(module: nn.Module, recorder: _Recorder) -> Iterator[None]:
    handles = []
    for name, child in module.named_modules():
        if not name:
            continue
        handles.append(child.register_forward_pre_hook(lambda *_, name=name: recorder.module_name.append(name)))
        handles.append(child.register_forward_hook(lambda *_: recorder.module_name.pop() and None))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class DoesNotRun(ConvertError):  # noqa: N818 (read as "except DoesNotRun")
    """The module's own code failed on the sample."""


def record(
    module: nn.Module, shapes: Mapping[str, Shape], dtype: torch.dtype = torch.float32
) -> tuple[NetBuilder, list[str]]:
    """The net and its output blobs, or a ConvertError that lists everything Caffe cannot express."""
    net = NetBuilder(type(module).__name__)
    recorder = _Recorder(net)
    inputs = [torch.zeros(shape, dtype=dtype) for shape in shapes.values()]
    for (name, shape), tensor in zip(shapes.items(), inputs, strict=True):
        recorder.bind(tensor, net.input(name, tuple(shape)))
    try:
        with torch.no_grad(), _named_after_modules(module, recorder), recorder:
            made = module(*inputs)
    except Exception as problem:  # the module is the user's, and may fail in any way
        raise DoesNotRun(f"{net.message.name}: running it failed: {type(problem).__name__}: {problem}") from problem
    outputs = []
    for tensor in _tensors(made):
        value = recorder.value_of(tensor)
        if value is not None:
            outputs.append(value.blob)
        elif not recorder.problems:
            recorder.problems.append("an output does not depend on the inputs")
    if recorder.problems:
        raise ConvertError(inexpressible(net.message.name, recorder.problems))
    return net, outputs


def inexpressible(what: str, problems: list[str]) -> str:
    listed = "\n".join(f"  - {problem}" for problem in dict.fromkeys(problems))
    return (
        f"{what}: {len(dict.fromkeys(problems))} operation(s) cannot be expressed with Caffe's layers:\n{listed}\n"
        "replace them in the model, or convert the part before them"
    )
