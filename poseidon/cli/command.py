"""Command: one verb of the `poseidon` and `caffe` programs, and the way its flags are spelled.

Flags follow gflags, as Caffe's do: `--solver=x`, `--solver x`, `-solver=x` and `-solver x` are the same, and `_` and `-`
in a flag's name are the same. A wrong flag or value is one line on standard error and exit code 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from poseidon.errors import UsageError
from poseidon.spec import nearest


@dataclass(frozen=True, slots=True)
class Command:
    """A verb: how its flags are declared, and what runs."""

    name: str
    summary: str
    declare: Callable[[Flags], None]
    run: Callable[[argparse.Namespace], int | None]


class Flags(argparse.ArgumentParser):
    """An argument parser that accepts gflags spelling and raises instead of exiting."""

    def __init__(self, program: str, summary: str) -> None:
        super().__init__(prog=program, description=summary, allow_abbrev=False)
        self.flag("debug", action="store_true", help="show the traceback of an error")

    def flag(self, name: str, **options: Any) -> None:
        """Declares a flag under all its spellings; `name` is written with dashes."""
        spellings = dict.fromkeys(
            prefix + spelled for spelled in (name, name.replace("-", "_")) for prefix in ("--", "-")
        )
        self.add_argument(*spellings, dest=name.replace("-", "_"), **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` lists the flags")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        found, unknown = self.parse_known_args(list(words))
        if unknown:
            known = [spelling for action in self._actions for spelling in action.option_strings]
            hint = nearest(unknown[0].split("=")[0], known)
            raise UsageError(f"unknown argument {unknown[0]!r}{hint}; `{self.prog} --help` lists the flags")
        return found
