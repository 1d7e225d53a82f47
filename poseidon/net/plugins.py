"""Plug-ins: layers of your own, found without touching Poseidon's code.

    a module     `load_plugins(["my_layers"])`, or the path of a .py file; `--plugin` and POSEIDON_PLUGINS on the
                 command line. Importing it registers its classes (`@register("Mish")`).
    a package    with an entry point in the group `poseidon.layers`, named like the layer type, whose value is the class
                 (`my_package.layers:Mish`). It is loaded when a net first asks for that type, and not before.

Plug-ins are code, and run with the rights of whoever loads them. A net's text can ask for a type by name, never for a
module.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from types import ModuleType

from poseidon.errors import UsageError

GROUP = "poseidon.layers"


def load_plugins(names: Iterable[str]) -> None:
    """Imports modules that register layers, each once: dotted names, or paths of Python files."""
    for name in names:
        try:
            _import(name)
        except UsageError:
            raise
        except Exception as problem:  # whatever somebody else's code does on import is told as one thing
            raise UsageError(f"plug-in {name!r} cannot be loaded: {type(problem).__name__}: {problem}") from problem


def _import(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).resolve()
    if not path.is_file():
        raise UsageError(f"plug-in {name!r}: there is no such file; give a Python file or the name of a module")
    key = f"poseidon_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:  # Ctrl-C too: a second try must not find half a module
        del sys.modules[key]
        raise
    return module


def installed_layer(type_name: str) -> object | None:
    """What an installed package offers for a layer type, or None."""
    offers = [entry for entry in metadata.entry_points(group=GROUP) if entry.name == type_name]
    if not offers:
        return None
    packages = sorted({entry.dist.name if entry.dist is not None else entry.value for entry in offers})
    if len(packages) > 1:
        raise UsageError(
            f"layer type {type_name!r} comes with several packages: {', '.join(packages)}; uninstall all but one"
        )
    try:
        return offers[0].load()
    except Exception as problem:  # somebody else's code again
        raise UsageError(
            f"layer type {type_name!r}: the plug-in of package {packages[0]!r} cannot be loaded: "
            f"{type(problem).__name__}: {problem}"
        ) from problem
