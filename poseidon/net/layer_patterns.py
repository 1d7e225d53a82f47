"""Layers chosen by patterns over their names, with `*`, `?` and `[...]` as in file names: "conv*", "fc[67]", "res2?/*".

Fine-tuning needs two choices. `freeze`: layers that keep their parameters while the rest of the net learns; what they
own or share gets learning rate 0 and no gradient, so that backward ends where nothing below learns, and a frozen
BatchNorm normalises with its stored statistics and leaves them alone. `skip` (of Net.load): layers that start as
initialised although the weights file has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from poseidon.errors import NetError
from poseidon.spec import nearest


def layers_matching(names: Sequence[str], patterns: Iterable[str], what: str) -> frozenset[str]:
    """The layers that the patterns name; a pattern that names none is an error, in which `what` is its use."""
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name in names if fnmatchcase(name, pattern)}
        if not found:
            hint = nearest(pattern.strip("*"), names)
            raise NetError(f"{what}: no layer matches {pattern!r}{hint}; layers: {', '.join(dict.fromkeys(names))}")
        chosen |= found
    return frozenset(chosen)
