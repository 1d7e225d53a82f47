"""Prototxt changed in the ways people and attackers change it: numbers, names and options exchanged, parts dropped,
doubled, or put into another net."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tests.fuzz.choices import Choices

_NUMBER = re.compile(r"(?<![\w\"./-])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w\"./])")
_STRING = re.compile(r'"[^"\n]*"')
_WORD_VALUE = re.compile(r"(?<=: )[A-Za-z_]+\b")
_FIELD = re.compile(r"\b\w+: *(?:\"[^\"\n]*\"|[\w.+-]+)")
_OPTIONS = re.compile(r"\b\w+_param *\{")
_LAYER = re.compile(r"\blayers? *\{")

NUMBERS = [
    *("0", "1", "2", "3", "4", "5", "7", "10", "33", "255", "256", "1000", "65536", "16777217"),
    *("2147483647", "2147483648", "4294967295", "4294967296", "1099511627776", "9223372036854775807"),
    *("-1", "-2", "-5", "-2147483648", "-9223372036854775808"),
    *("0.5", "-0.5", "1e-30", "1e30", "-1e30", "3.5e38", "inf", "-inf", "nan"),
]
WORDS = [
    *("true", "false", "MAX", "AVE", "STOCHASTIC", "SUM", "PROD", "MEAN", "ASUM", "SUMSQ", "TRAIN", "TEST"),
    *("WITHIN_CHANNEL", "ACROSS_CHANNELS", "L1", "L2", "VALID", "FULL", "BATCH_SIZE", "NONE", "LMDB", "LEVELDB"),
    *("STRICT", "PERMISSIVE", "FAN_IN", "FAN_OUT", "AVERAGE", "CAFFE", "CUDNN", "CEIL", "FLOOR", "HDF5"),
]


def mutated(texts: Sequence[str], choices: Choices, most: int = 8) -> str:
    """One of the texts, changed once for as long as there are bytes to choose by."""
    text = choices.one_of(texts)
    for _ in range(most):
        if choices.used_up:
            break
        text = choices.one_of(_MUTATIONS)(text, texts, choices)
    return text


# -- one change -----------------------------------------------------------------------------------------------------
def _number(text: str, texts: Sequence[str], choices: Choices) -> str:
    return _exchange(text, _NUMBER, choices, lambda _: choices.one_of(NUMBERS))


def _number_moved(text: str, texts: Sequence[str], choices: Choices) -> str:
    known = _NUMBER.findall(text)
    return _exchange(text, _NUMBER, choices, lambda _: choices.one_of(known))


def _string(text: str, texts: Sequence[str], choices: Choices) -> str:
    known = _STRING.findall(text)
    return _exchange(text, _STRING, choices, lambda _: choices.one_of(known))


def _type(text: str, texts: Sequence[str], choices: Choices) -> str:
    known = sorted({name for other in texts for name in re.findall(r'type: *("[A-Z]\w*")', other)})
    return _exchange(text, re.compile(r'(?<=type: )"[A-Z]\w*"'), choices, lambda _: choices.one_of(known))


def _word(text: str, texts: Sequence[str], choices: Choices) -> str:
    return _exchange(text, _WORD_VALUE, choices, lambda _: choices.one_of(WORDS))


def _field_dropped(text: str, texts: Sequence[str], choices: Choices) -> str:
    return _exchange(text, _FIELD, choices, lambda _: "")


def _field_doubled(text: str, texts: Sequence[str], choices: Choices) -> str:
    return _exchange(text, _FIELD, choices, lambda found: f"{found} {found}")


def _layer_dropped(text: str, texts: Sequence[str], choices: Choices) -> str:
    blocks = _blocks(text, _LAYER)
    if not blocks:
        return text
    start, end = choices.one_of(blocks)
    return text[:start] + text[end:]


def _layer_doubled(text: str, texts: Sequence[str], choices: Choices) -> str:
    blocks = _blocks(text, _LAYER)
    if not blocks:
        return text
    start, end = choices.one_of(blocks)
    return text[:end] + "\n" + text[start:end] + text[end:]


def _layers_swapped(text: str, texts: Sequence[str], choices: Choices) -> str:
    blocks = _blocks(text, _LAYER)
    if len(blocks) < 2:
        return text
    first = choices.below(len(blocks) - 1)
    (start, middle), (other, end) = blocks[first], blocks[first + 1]
    return text[:start] + text[other:end] + text[middle:other] + text[start:middle] + text[end:]


def _layer_of_another(text: str, texts: Sequence[str], choices: Choices) -> str:
    other = choices.one_of(texts)
    blocks = _blocks(other, _LAYER)
    if not blocks:
        return text
    start, end = choices.one_of(blocks)
    return text + "\n" + other[start:end]


def _options_of_another(text: str, texts: Sequence[str], choices: Choices) -> str:
    other = choices.one_of(texts)
    options, places = _blocks(other, _OPTIONS), list(_LAYER.finditer(text))
    if not options or not places:
        return text
    start, end = choices.one_of(options)
    place = choices.one_of(places).end()
    return text[:place] + " " + other[start:end] + " " + text[place:]


_MUTATIONS: list[Callable[[str, Sequence[str], Choices], str]] = [
    _number,
    _number,
    _number_moved,
    _string,
    _type,
    _word,
    _field_dropped,
    _field_doubled,
    _layer_dropped,
    _layer_doubled,
    _layers_swapped,
    _layer_of_another,
    _options_of_another,
]


# -- places in a text -----------------------------------------------------------------------------------------------
def _exchange(text: str, pattern: re.Pattern[str], choices: Choices, replacement: Callable[[str], str]) -> str:
    """One match of the pattern, replaced."""
    matches = list(pattern.finditer(text))
    if not matches:
        return text
    match = choices.one_of(matches)
    return text[: match.start()] + replacement(match[0]) + text[match.end() :]


def _blocks(text: str, opening: re.Pattern[str]) -> list[tuple[int, int]]:
    """Where the blocks with this opening begin and end."""
    blocks = []
    for match in opening.finditer(text):
        depth = 0
        for position in range(match.end() - 1, len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                blocks.append((match.start(), position + 1))
                break
    return blocks
