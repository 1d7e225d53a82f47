"""Plug-ins that a command line asks for: --plugin, and the variable POSEIDON_PLUGINS for all commands alike."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from poseidon.cli.command import listed

VARIABLE = "POSEIDON_PLUGINS"


def load_asked(found: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Imports the modules named there (comma lists), the variable's first."""
    names = [*listed(environ.get(VARIABLE, "")), *listed(found.plugin)]
    if names:
        from poseidon.net.plugins import load_plugins

        load_plugins(names)
