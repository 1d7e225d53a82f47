"""Nets written in Python: `layers` and `params` make Tops and constants, `NetSpec` names them, `to_proto` writes them.

    n = NetSpec()
    n.data = layers.Input(shape=dict(dim=[1, 3, 28, 28]))
    n.conv = layers.Convolution(n.data, num_output=8, kernel_size=5, weight_filler=dict(type="xavier"))
    n.relu = layers.ReLU(n.conv, in_place=True)
    n.to_proto()                                     a NetParameter; str(...) of it is a prototxt

A keyword of a layer is one of the layer's own options (`num_output` of `convolution_param`), or else a field of the
layer (`param`, `include`, `loss_weight`, any `..._param`). `ntop` says how many tops it gives, `in_place` that its top
is its bottom. Layers and blobs that got no name in the spec are called by type and number: Convolution1.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf.message import Message

from poseidon.spec import caffe_pb2


def param_name_dict() -> dict[str, str]:
    """Layer type -> prefix of the field that holds its options: {"InnerProduct": "inner_product", ...}."""
    fields = [f for f in caffe_pb2.LayerParameter.DESCRIPTOR.fields if f.name.endswith("_param") and f.message_type]
    names = {f.message_type.name.removesuffix("Parameter"): f.name.removesuffix("_param") for f in fields}
    # These two have no message of their own.
    return names | {"Deconvolution": "convolution", "Im2col": "convolution"}


def to_proto(*tops: Top) -> caffe_pb2.NetParameter:
    """The net that computes all the given tops."""
    return _Writer({}).net(tops)


def assign_proto(message: Message, name: str, value: Any) -> None:
    """Sets a field from Python's own types: dicts become messages, lists repeated fields; what stands alone for a
    repeated field becomes its only entry."""
    field = getattr(message, name)
    if hasattr(field, "extend"):
        for entry in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(entry, Mapping):
                _assign_all(field.add(), entry)
            else:
                field.append(entry)
    elif isinstance(value, Mapping):
        field.SetInParent()
        _assign_all(field, value)
    elif isinstance(value, Message):
        field.CopyFrom(value)
    else:
        setattr(message, name, value)


def _assign_all(message: Message, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        assign_proto(message, name, value)


class Top:
    """One of the blobs a layer gives."""

    def __init__(self, fn: Function, n: int) -> None:
        self.fn = fn
        self.n = n

    def to_proto(self) -> caffe_pb2.NetParameter:
        """The net that computes this top."""
        return to_proto(self)


class Function:
    """A layer: its type, the tops it reads, its options, and the tops it gives."""

    def __init__(self, type_name: str, inputs: Iterable[Top], params: Mapping[str, Any]) -> None:
        self.type_name = type_name
        self.inputs = tuple(inputs)
        for index, given in enumerate(self.inputs):
            if not isinstance(given, Top):
                raise TypeError(f"{type_name} input {index} is not a Top (type is {type(given)})")
        self.params = dict(params)
        self.ntop = self.params.pop("ntop", 1)
        self.in_place = self.params.pop("in_place", False)
        self.tops = tuple(Top(self, n) for n in range(self.ntop))


class _Writer:
    """Writes functions as layers, each after those it reads from, and names what has no name yet."""

    def __init__(self, names: Mapping[Top | Function, str]) -> None:
        self._names = dict(names)
        self._numbers: Counter[str] = Counter()
        self._layers: OrderedDict[Function, caffe_pb2.LayerParameter] = OrderedDict()

    def net(self, wanted: Iterable[Top | Function]) -> caffe_pb2.NetParameter:
        for item in wanted:
            self._write(item.fn if isinstance(item, Top) else item)
        return caffe_pb2.NetParameter(layer=self._layers.values())

    def _write(self, fn: Function) -> None:
        waiting = [fn]  # a stack of its own: nets are deeper than Python's
        while waiting:
            fn = waiting[-1]
            missing = [top.fn for top in fn.inputs if top.fn not in self._layers]
            if fn not in self._layers and missing:
                waiting += reversed(missing)
                continue
            waiting.pop()
            if fn not in self._layers:
                self._layers[fn] = self._layer(fn)

    def _layer(self, fn: Function) -> caffe_pb2.LayerParameter:
        layer = caffe_pb2.LayerParameter(type=fn.type_name)
        layer.bottom.extend(self._layers[top.fn].top[top.n] for top in fn.inputs)
        layer.top.extend(layer.bottom if fn.in_place else [self._name(top, fn) for top in fn.tops])
        layer.name = self._name(fn.tops[0] if fn.tops else fn, fn)
        own = f"{_OPTIONS_OF.get(fn.type_name, '')}_param"
        for name, value in fn.params.items():
            options = getattr(layer, own, None)
            is_own = not name.endswith("param") and options is not None and name in options.DESCRIPTOR.fields_by_name
            try:
                assign_proto(options if is_own else layer, name, value)
            except AttributeError as problem:
                raise AttributeError(f"layer {layer.name!r} ({fn.type_name}), option {name!r}: {problem}") from None
        return layer

    def _name(self, item: Top | Function, fn: Function) -> str:
        if item not in self._names:
            self._numbers[fn.type_name] += 1
            self._names[item] = f"{fn.type_name}{self._numbers[fn.type_name]}"
        return self._names[item]


class NetSpec:
    """Tops by name, set as attributes or items; `to_proto` gives the net that computes all of them."""

    tops: OrderedDict[str, Any]

    def __init__(self) -> None:
        super().__setattr__("tops", OrderedDict())

    def __setattr__(self, name: str, value: Any) -> None:
        self.tops[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python itself asks for those
            raise AttributeError(name)
        try:
            return self.tops[name]
        except KeyError:
            raise AttributeError(
                f"the net spec has no {name!r} (it has: {', '.join(self.tops) or 'nothing'})"
            ) from None

    def __delattr__(self, name: str) -> None:
        del self.tops[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.tops[name] = value

    def __getitem__(self, name: str) -> Any:
        return self.tops[name]

    def __delitem__(self, name: str) -> None:
        del self.tops[name]

    def to_proto(self) -> caffe_pb2.NetParameter:
        for name, top in self.tops.items():
            if not isinstance(top, (Top, Function)):
                raise TypeError(f"{name} is not a Top (type is {type(top)}); give each of several tops its own name")
        return _Writer({top: name for name, top in self.tops.items()}).net(self.tops.values())


class Layers:
    """`layers.Convolution(bottom, …)`: a layer of any type; gives its top, several as a tuple, none as the Function."""

    def __getattr__(self, type_name: str) -> Callable[..., Any]:
        if type_name.startswith("__"):  # Python itself asks for those
            raise AttributeError(type_name)

        def make(*inputs: Top, **params: Any) -> Top | tuple[Top, ...] | Function:
            fn = Function(type_name, inputs, params)
            if fn.ntop == 0:
                return fn
            return fn.tops[0] if fn.ntop == 1 else fn.tops

        return make


class Parameters:
    """`params.Pooling.MAX`: the constants of a layer type's options."""

    def __getattr__(self, type_name: str) -> Any:
        try:
            return getattr(caffe_pb2, f"{type_name}Parameter")
        except AttributeError:
            raise AttributeError(f"Caffe has no {type_name}Parameter to take constants from") from None


_OPTIONS_OF = param_name_dict()
layers = Layers()
params = Parameters()
