"""Command: one verb of the `poseidon` and `caffe` programs, and the way its flags are spelled.

Flags follow gflags, as Caffe's do: `--solver=x`, `--solver x`, `-solver=x` and `-solver x` are the same, and so are `_`
and `-` in a flag's name. A wrong flag or value is one line on standard error and exit code 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from poseidon.errors import UsageError
from poseidon.spec import nearest


class Flags(argparse.ArgumentParser):
    """An argument parser that accepts gflags' spelling and raises instead of exiting."""

    def __init__(self, program: str, summary: str) -> None:
        super().__init__(prog=program, description=summary, allow_abbrev=False)
        self.flag("debug", action="store_true", help="show the traceback of an error")

    def flag(self, name: str, **options: Any) -> None:
        """Declares a flag under all its spellings; `name` is written with dashes."""
        spellings = dict.fromkeys(
            prefix + spelled for prefix in ("--", "-") for spelled in (name, name.replace("-", "_"))
        )
        self.add_argument(*spellings, dest=name.replace("-", "_"), **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` lists the flags")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        found, unknown = self.parse_known_args(list(words))
        if unknown:
            known = [spelling for action in self._actions for spelling in action.option_strings]
            hint = nearest(unknown[0].partition("=")[0], known)
            raise UsageError(f"unknown argument {unknown[0]!r}{hint}; `{self.prog} --help` lists the flags")
        return found


@dataclass(frozen=True, slots=True)
class Command:
    """A verb: how its flags are declared, and what runs."""

    declare: Callable[[Flags], None]
    run: Callable[[argparse.Namespace], int | None]


def net_flags(flags: Flags) -> None:
    """What every verb that builds a net takes."""
    flags.flag("gpu", default="", metavar="IDS", help="a GPU's number, or `all`; without it the CPU computes")
    flags.flag("level", type=int, default=0, help="the net's level, for include and exclude rules")
    flags.flag("stage", default="", metavar="NAMES", help="the net's stages, separated by commas")


def listed(text: str) -> list[str]:
    """The entries of a comma list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def require(value: str | None, flag: str, what: str) -> str:
    """The value of a flag that must be given."""
    if not value:
        raise UsageError(f"--{flag} is missing: give {what}")
    return value
