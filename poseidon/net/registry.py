"""Layer types by name: an open set, filled by the decorator `@register("Type")`.

Importing `poseidon.net.layers` registers every built-in layer. A plug-in registers its own class the same way,
without touching this code. Names are Caffe's (`Convolution`, `InnerProduct`, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from poseidon.errors import NetError
from poseidon.spec import nearest

if TYPE_CHECKING:
    from poseidon.net.layer import Layer

_LAYERS: dict[str, type[Layer]] = {}

LayerClass = TypeVar("LayerClass", bound="type[Layer]")


def register(type_name: str) -> Callable[[LayerClass], LayerClass]:
    """Class decorator that makes a layer buildable under `type_name`."""

    def add(layer_class: LayerClass) -> LayerClass:
        if type_name in _LAYERS:
            raise ValueError(f"layer type {type_name!r} is registered twice ({_LAYERS[type_name].__module__})")
        _LAYERS[type_name] = layer_class
        return layer_class

    return add


def layer_class(type_name: str) -> type[Layer]:
    """The class registered for a type; an unknown type lists the nearest and all known ones."""
    found = _LAYERS.get(type_name)
    if found is not None:
        return found
    hint = nearest(type_name, _LAYERS)
    raise NetError(f"unknown layer type {type_name!r}{hint}; known types: {', '.join(layer_types())}")


def layer_types() -> list[str]:
    """All registered type names, sorted."""
    return sorted(_LAYERS)
