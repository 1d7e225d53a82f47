"""What moves bytes without Python, if it was built: `Mesh`, the connections of a worker (`mesh.h`); else None.

`setup.py` builds it where there is a C compiler. Everything works without, by slower ways: notified puts moved by
Python (`../onesided/interpreted.py`), messages by gloo (`../c10d.py`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

Mesh: Any
try:
    Mesh = import_module("poseidon.transport.native._mesh").Mesh
except ImportError:
    Mesh = None

IS_BUILT = Mesh is not None
