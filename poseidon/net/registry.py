"""Layer types by name: an open set, filled by the decorator `@register("Type")`.

Importing `poseidon.net.layers` registers every built-in layer. A plug-in registers its own class the same way,
without touching this code (plugins.py). Names are Caffe's (`Convolution`, `InnerProduct`, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from torch import nn

from poseidon.errors import NetError
from poseidon.net.plugins import installed_layer
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
        missing = sorted(getattr(layer_class, "__abstractmethods__", ()))
        if missing:
            raise ValueError(
                f"layer type {type_name!r}: class {layer_class.__name__} does not write {', '.join(missing)}, which "
                "every layer of its kind must (docs/plugins.md)"
            )
        _LAYERS[type_name] = layer_class
        return layer_class

    return add


def layer_class(type_name: str) -> type[Layer]:
    """The class of a type, registered or offered by an installed package; an unknown type lists the nearest and all."""
    found = _LAYERS.get(type_name)
    if found is None:
        found = _installed(type_name)
    if found is not None:
        return found
    hint = nearest(type_name, _LAYERS)
    raise NetError(
        f"unknown layer type {type_name!r}{hint}; known types: {', '.join(layer_types())}; to add it, write the layer "
        "in Python and load it with --plugin FILE.py or poseidon.net.plugins.load_plugins (docs/plugins.md shows how)"
    )


def _installed(type_name: str) -> type[Layer] | None:
    offered = installed_layer(type_name)
    if offered is None:
        return None
    if type_name not in _LAYERS:  # else the class has registered itself while its module was imported
        if not (isinstance(offered, type) and issubclass(offered, nn.Module) and hasattr(offered, "reshape")):
            raise NetError(
                f"layer type {type_name!r}: the installed plug-in offers {offered!r}, expected a Layer class"
            )
        register(type_name)(cast("type[Layer]", offered))
    return _LAYERS[type_name]


def layer_types() -> list[str]:
    """All registered type names, sorted."""
    return sorted(_LAYERS)
