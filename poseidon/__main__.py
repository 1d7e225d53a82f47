"""`python -m poseidon`: the `poseidon` command, as torchrun and the launcher start it."""

from __future__ import annotations

import sys

from poseidon.cli import main

if __name__ == "__main__":
    sys.exit(main())
