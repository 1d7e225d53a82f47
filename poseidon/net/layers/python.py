"""Python: a layer whose code the user writes, as a class in a Python module.

    python_param { module: "my_layers" layer: "MyLayer" param_str: "…" }

    import caffe
    class MyLayer(caffe.Layer):
        def setup(self, bottom, top): …                       once; self.param_str, self.phase, self.blobs are there
        def reshape(self, bottom, top): …                     before every forward; gives each top its shape
        def forward(self, bottom, top): …                     fills top[i].data from bottom[i].data
        def backward(self, top, propagate_down, bottom): …    fills bottom[i].diff from top[i].diff

Parameters are added in setup by `self.blobs.add_blob(*dims)` and set by `self.blobs[i].data`; their gradient is what
backward adds to `self.blobs[i].diff`. A top with a bottom's name is the same blob object as that bottom. The module
must be importable: on the Python path or in the current folder.

A net run layer by layer hands over its own blobs (`run_on_blobs`): what user code writes, it writes into the net. In a
net run as one autograd graph they are HostBlobs, filled before and read after each call.

`share_in_parallel` chooses between one instance and many where Caffe's solvers are threads of one process. Workers are
processes here and each has its own instance, so both settings mean the same.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from poseidon.errors import UserCodeError
from poseidon.net.array_blob import ArrayBlob, ParamBlob
from poseidon.net.host_blob import BlobList, HostBlob
from poseidon.net.layer import Layer, LayerContext, Shape, at_least
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2


class PythonLayerBase:
    """What users subclass, as `caffe.Layer`."""

    param_str: str
    param_str_: str  # what Caffe called it until 2015
    phase: int
    blobs: BlobList
    type = "Python"

    def __init__(self, layer_param: caffe_pb2.LayerParameter) -> None:
        self.layer_param = layer_param

    def setup(self, bottom: Sequence[ArrayBlob], top: Sequence[ArrayBlob]) -> None:
        """Reads param_str and adds parameters; may be left out."""

    def reshape(self, bottom: Sequence[ArrayBlob], top: Sequence[ArrayBlob]) -> None:
        raise NotImplementedError("a Python layer needs a method reshape(self, bottom, top)")

    def forward(self, bottom: Sequence[ArrayBlob], top: Sequence[ArrayBlob]) -> None:
        raise NotImplementedError("a Python layer needs a method forward(self, bottom, top)")

    def backward(self, top: Sequence[ArrayBlob], propagate_down: list[bool], bottom: Sequence[ArrayBlob]) -> None:
        raise NotImplementedError("a Python layer in the way of a gradient needs a method backward(…)")


@register("Python")
class Python(Layer):
    bottoms = at_least(0)
    tops = at_least(0)

    def __init__(self, spec: caffe_pb2.LayerParameter, context: LayerContext) -> None:
        super().__init__(spec, context)
        dtype = torch.float64 if context.dtype == torch.float64 else torch.float32
        user_class = self._user_class()
        with self._user_code("__init__"):
            self.user = user_class(spec)
        self.user.param_str = self.user.param_str_ = spec.python_param.param_str
        self.user.phase = context.phase
        self.user.blobs = BlobList(dtype)
        self._bottoms = [HostBlob(dtype=dtype) for _ in spec.bottom]
        by_name = dict(zip(spec.bottom, self._bottoms, strict=True))
        self._tops = [by_name.get(name) or HostBlob(dtype=dtype) for name in spec.top]
        self._host_params: list[HostBlob] = []
        self._like = torch.empty(0, dtype=context.dtype, device=context.device)

    # -- finding the user's code ------------------------------------------------------------------------------------
    @property
    def _full_name(self) -> str:
        return f"{self.spec.python_param.module}.{self.spec.python_param.layer}"

    def _user_class(self) -> type[PythonLayerBase]:
        options = self.spec.python_param
        if not options.module or not options.layer:
            raise self.error(
                "python_param needs `module` and `layer`, the names of a Python module and of a class in it"
            )
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        importlib.invalidate_caches()
        try:
            module = importlib.import_module(options.module)
        except Exception as problem:  # the module is the user's, and may fail in any way
            raise self.error(
                f"cannot import module {options.module!r} for class {options.layer!r}: "
                f"{type(problem).__name__}: {problem}; it must be in the current folder or on PYTHONPATH"
            ) from problem
        found = getattr(module, options.layer, None)
        if not inspect.isclass(found) or not issubclass(found, PythonLayerBase):
            known = [n for n, c in vars(module).items() if inspect.isclass(c) and issubclass(c, PythonLayerBase)]
            wrong = "has no class" if found is None else "needs a subclass of caffe.Layer under the name"
            raise self.error(
                f"module {options.module!r} {wrong} {options.layer!r} (layers in it: {', '.join(known) or 'none'})"
            )
        return found

    @contextlib.contextmanager
    def _user_code(self, method: str) -> Iterator[None]:
        try:
            yield
        except Exception as problem:  # user code may raise anything; it is named and chained
            told = self.error(f"{self._full_name}.{method} failed: {type(problem).__name__}: {problem}")
            raise UserCodeError(*told.args) from problem

    # -- life of a layer --------------------------------------------------------------------------------------------
    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        self._reshape_bottoms(bottom_shapes)
        with self._user_code("setup"):
            self.user.setup(self._bottoms, self._tops)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        self._reshape_bottoms(bottom_shapes)
        with self._user_code("reshape"):
            self.user.reshape(self._bottoms, self._tops)
        self._adopt_blobs()
        return [blob.shape for blob in self._tops]

    def _reshape_bottoms(self, shapes: Sequence[Shape]) -> None:
        for blob, shape in zip(self._bottoms, shapes, strict=True):
            blob.reshape(*shape)

    def _adopt_blobs(self) -> None:
        """Makes parameters of the blobs that the user's code has added."""
        for index in range(self.num_params, len(self.user.blobs)):
            blob = self.user.blobs[index]
            assert isinstance(blob, HostBlob)
            self.add_param(blob.shape)
            with torch.no_grad():
                self.param(index).copy_(blob.data_tensor(self._like))
            blob.show(self.param(index))  # user code may have kept this blob: it shows the parameter from now on
            self._host_params.append(blob)
            if self.shows_memory:
                self.user.blobs[index] = ParamBlob(self, index)

    @property
    def shows_memory(self) -> bool:
        """True where user code can be given the net's own memory: NumPy has its type, and it is the CPU's."""
        return self._like.device.type == "cpu" and self._like.dtype in (torch.float32, torch.float64)

    def initial_tops(self) -> list[Tensor | None]:
        """What setup wrote into them."""
        return [blob.data_tensor(self._like) if blob.is_written else None for blob in self._tops]

    # -- the user's methods, on the blobs of a net that is run layer by layer -----------------------------------------
    def reshape_on_blobs(self, bottoms: Sequence[ArrayBlob], tops: Sequence[ArrayBlob]) -> None:
        with self._user_code("reshape"):
            self.user.reshape(bottoms, tops)

    def run_on_blobs(self, bottoms: Sequence[ArrayBlob], tops: Sequence[ArrayBlob]) -> None:
        for index in range(self.num_params):
            self.param(index)  # waits until it is up to date
        self.reshape_on_blobs(bottoms, tops)
        with self._user_code("forward"):
            self.user.forward(bottoms, tops)

    def run_back_on_blobs(
        self, tops: Sequence[ArrayBlob], propagate_down: list[bool], bottoms: Sequence[ArrayBlob]
    ) -> None:
        with self._user_code("backward"):
            self.user.backward(tops, propagate_down, bottoms)

    @torch._disable_dynamo  # torch.compiler.disable would import the compiler: a second, and 80 MB, for nothing
    def forward(self, *bottoms: Tensor) -> tuple[Tensor, ...]:
        inputs = (*bottoms, *(self.param(i) for i in range(self.num_params)))
        if not self._tops or not inputs:
            with torch.no_grad():
                return self.call_forward(inputs)
        return _UserCall.apply(self, *inputs)

    # -- the user's forward and backward, between tensors -----------------------------------------------------------
    def call_forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        bottoms, params = self._divide(inputs)
        for blob, tensor in zip(self._bottoms, bottoms, strict=True):
            # What is both top and bottom gets overwritten; the bottom's tensor must not be.
            blob.show(tensor.clone() if blob in self._tops else tensor)
        for blob, tensor in zip(self._host_params, params, strict=True):
            blob.show(tensor)
        with self._lent_params():
            with self._user_code("reshape"):
                self.user.reshape(self._bottoms, self._tops)
            with self._user_code("forward"):
                self.user.forward(self._bottoms, self._tops)
        for blob, tensor in zip(self._host_params, params, strict=True):
            blob.write_back(tensor)
        return tuple(blob.data_tensor(self._like) for blob in self._tops)

    def call_backward(
        self, inputs: Sequence[Tensor], tops: Sequence[Tensor], diffs: Sequence[Tensor], needed: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        bottoms, params = self._divide(inputs)
        blobs = [*self._bottoms, *self._host_params]
        for blob, tensor in zip(blobs, [*bottoms, *params], strict=True):
            blob.show(tensor)
        for blob, tensor, diff in zip(self._tops, tops, diffs, strict=True):
            blob.show(tensor.clone(), diff)  # the next forward pass may write into this memory
        with self._lent_params(), self._user_code("backward"):
            self.user.backward(self._tops, list(needed[: len(bottoms)]), self._bottoms)
        return tuple(
            blob.diff_tensor(tensor) if wanted else None
            for blob, tensor, wanted in zip(blobs, inputs, needed, strict=True)
        )

    @contextlib.contextmanager
    def _lent_params(self) -> Iterator[None]:
        """While inside, the user's `self.blobs` are HostBlobs: autograd wants the gradient of this call by itself."""
        shown = list(self.user.blobs)
        self.user.blobs[:] = self._host_params
        try:
            yield
        finally:
            self.user.blobs[:] = shown

    def _divide(self, inputs: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        return inputs[: len(self._bottoms)], inputs[len(self._bottoms) :]


class _UserCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: Python, *inputs: Tensor) -> tuple[Tensor, ...]:
        tops = layer.call_forward(inputs)
        ctx.layer, ctx.num_inputs = layer, len(inputs)
        ctx.save_for_backward(*inputs, *tops)
        return tops

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *diffs: Tensor) -> tuple[Tensor | None, ...]:
        inputs, tops = ctx.saved_tensors[: ctx.num_inputs], ctx.saved_tensors[ctx.num_inputs :]
        return (None, *ctx.layer.call_backward(inputs, tops, diffs, ctx.needs_input_grad[1:]))
