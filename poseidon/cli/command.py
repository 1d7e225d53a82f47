"""Command: one verb of the `poseidon` and `caffe` programs, and the way its flags are spelled.

Flags follow gflags, as Caffe's do: `--solver=x`, `--solver x`, `-solver=x` and `-solver x` are the same, and so are `_`
and `-` in a flag's name; a switch is `--gray`, `--nogray`, `--gray=true` or `--gray=false`. What is no flag may stand
before, between and behind flags; behind `--` nothing is a flag. A wrong flag or value is one line on standard error and
exit code 1.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from poseidon.errors import UsageError
from poseidon.spec import nearest

TRUE_WORDS = ("true", "t", "yes", "y", "1")
FALSE_WORDS = ("false", "f", "no", "n", "0")


@dataclass(frozen=True, slots=True)
class Operand:
    """A word that is no flag; `many`: all words that follow as well."""

    name: str
    help: str
    required: bool = True
    many: bool = False

    def __str__(self) -> str:
        shown = f"{self.name} ..." if self.many else self.name
        return shown if self.required else f"[{shown}]"


class Flags(argparse.ArgumentParser):
    """An argument parser that accepts gflags' spelling and raises instead of exiting."""

    def __init__(self, program: str, summary: str) -> None:
        super().__init__(
            prog=program,
            description=summary,
            allow_abbrev=False,
            exit_on_error=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._switches: set[str] = set()
        self._operands: list[Operand] = []
        self.flag("debug", action="store_true", help="show the traceback of an error")
        self.flag("plugin", default="", metavar="MODULES", help="Python modules or files with layers of your own")

    def flag(self, name: str, **options: Any) -> None:
        """Declares a flag; `name` is written with dashes."""
        self.add_argument(f"--{name}", **options)

    def switch(self, name: str, help: str) -> None:
        """Declares a flag that is on or off, and off unless it is given."""
        destination = name.replace("-", "_")
        self.add_argument(f"--{name}", dest=destination, action="store_true", help=help)
        self.add_argument(f"--no{name}", dest=destination, action="store_false", default=False, help=argparse.SUPPRESS)
        self._switches.add(f"--{name}")

    def operands(self, *operands: Operand) -> None:
        """Declares the words that are no flags, in their order; their names in small letters hold them."""
        self._operands = list(operands)
        self.usage = f"{self.prog} [flags] {' '.join(map(str, operands))}"
        width = max(len(operand.name) for operand in operands)
        listed = "\n".join(f"{operand.name:{width}}  {operand.help}" for operand in operands)
        self.add_argument_group("arguments", listed)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` lists the flags")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        words = list(words)
        end = words.index("--") if self._operands and "--" in words else len(words)
        try:
            found, unknown = self.parse_known_args([self._canonical(word) for word in words[:end]])
        except argparse.ArgumentError as problem:
            self.error(f"{problem.argument_name}: {problem.message}" if problem.argument_name else problem.message)
        if self._operands:
            unknown = self._take_operands(found, unknown, words[end + 1 :])
        if unknown:
            self.error(self._about_unknown(unknown[0]))
        return found

    def _take_operands(self, found: argparse.Namespace, words: list[str], behind: list[str]) -> list[str]:
        """Gives words that are no flags to the operands; returns unknown flags."""
        wrong = [word for word in words if word.startswith("-") and word != "-"]
        given = [word for word in words if word not in wrong] + behind
        for operand in self._operands:
            if operand.many:
                value: str | list[str] | None = given
                given = []
            else:
                value = given.pop(0) if given else None
            if operand.required and not value and not wrong:
                self.error(f"{operand.name} is missing ({operand.help}); usage: {self.usage}")
            setattr(found, operand.name.lower(), value)
        if given and not wrong:
            self.error(f"{given[0]!r} is one word too many; usage: {self.usage}")
        return wrong

    def _canonical(self, word: str) -> str:
        """`-sigint_effect=x` as `--sigint-effect=x`, `-gray=false` as `--nogray`; what is no flag of this verb stays as
        it is."""
        name, equals, value = word.partition("=")
        spelled = "--" + name.lstrip("-").replace("_", "-")
        if not name.startswith("-") or spelled not in self._option_string_actions:
            return word
        if equals and spelled in self._switches:
            return self._switched(spelled, value)
        return f"{spelled}{equals}{value}"

    def _switched(self, spelled: str, value: str) -> str:
        if value.lower() not in TRUE_WORDS + FALSE_WORDS:
            self.error(f"{spelled} is true or false, got {value!r}")
        return spelled if value.lower() in TRUE_WORDS else f"--no{spelled[2:]}"

    def _about_unknown(self, word: str) -> str:
        if word.startswith("-"):
            known = [spelling for action in self._actions for spelling in action.option_strings]
            name = word.partition("=")[0]
            return f"there is no flag {name}{nearest('--' + name.lstrip('-').replace('_', '-'), known)}"
        example = next((action for action in self._actions if action.option_strings and action.nargs is None), None)
        hint = f"; a value goes with its flag, as in {example.option_strings[0]}={word}" if example else ""
        return f"{word!r} belongs to no flag{hint}"


@dataclass(frozen=True, slots=True)
class Command:
    """A verb: how its flags are declared, and what runs."""

    declare: Callable[[Flags], None]
    run: Callable[[argparse.Namespace], int | None]


def net_flags(flags: Flags) -> None:
    """What every verb that builds a net takes."""
    flags.flag("gpu", default="", metavar="IDS", help="a GPU's number, or `all`; without it the CPU computes")
    flags.flag("level", type=whole_number, default=0, metavar="N", help="the net's level, for include and exclude")
    flags.flag("stage", default="", metavar="NAMES", help="the net's stages, separated by commas")
    flags.flag("plain", action="store_true", help="Caffe's log lines, also on a terminal")


# -- values ---------------------------------------------------------------------------------------------------------
def whole_number(text: str) -> int:
    """A number that fits the fields of Caffe's schema."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
    if not -(2**31) <= number < 2**31:
        raise argparse.ArgumentTypeError(f"expected a number of at most 31 bits, got {number}")
    return number


def positive_number(text: str) -> int:
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def natural_number(text: str) -> int:
    number = whole_number(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, got {number}")
    return number


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """A value that is one of these names, upper and lower case alike."""
    by_lower = {name.lower(): name for name in names}

    def choose(text: str) -> str:
        if text.lower() not in by_lower:
            hint = nearest(text, by_lower.values())
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(by_lower.values())}, got {text!r}{hint}")
        return by_lower[text.lower()]

    return choose


def listed(text: str) -> list[str]:
    """The entries of a comma list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def files(text: str, flag: str) -> list[str]:
    """The entries of a comma list of files, which must be there: told before a net is built, not after."""
    for path in listed(text):
        if not os.path.exists(path):
            raise UsageError(
                f"--{flag}={text}: there is no file {path!r}; a relative path starts where the command runs"
            )
    return listed(text)


def require(value: str | None, flag: str, what: str) -> str:
    """The value of a flag that must be given."""
    if not value:
        raise UsageError(f"--{flag} is missing: give {what}")
    return value
