"""Colours of the report: text can be read (WCAG's contrast), and people who see fewer colours can tell marks apart."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

import poseidon.report

STYLE = (Path(poseidon.report.__file__).parent / "page" / "style.css").read_text()
PAIRS = dict(re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}, #[0-9a-f]{6})\);", STYLE))
MARKS = ("blue", "orange", "green", "violet", "rose", "gray")

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SEEN_BY = {
    "everybody": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopes": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopes": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}


def colour(name, theme):
    return PAIRS[name].split(", ")[theme]


def linear(text):
    channels = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def luminance(text):
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear(text), strict=True))


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    """CIE L*a*b* (D65) of linear RGB."""
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    xyz = [sum(a * b for a, b in zip(row, rgb, strict=True)) / w for row, w in zip(rows, white, strict=True)]
    f = [max(c, 0.0) ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in xyz]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def apart(one, other, matrix):
    def seen(text):
        return lab([max(0.0, sum(a * b for a, b in zip(row, linear(text), strict=True))) for row in matrix])

    return sum((a - b) ** 2 for a, b in zip(seen(one), seen(other), strict=True)) ** 0.5


def test_contrast_is_what_the_standard_says():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ink", ["ink", "quiet", "link", *MARKS])
@pytest.mark.parametrize("ground", ["page", "sheet"])
def test_text_and_marks_can_be_read(ink, ground, theme):
    assert contrast(colour(ink, theme), colour(ground, theme)) >= 4.5


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("mark", MARKS)
def test_text_on_marks_can_be_read(mark, theme):
    assert contrast(colour("on-mark", theme), colour(mark, theme)) >= 4.5


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ink", ["ink", "quiet"])
def test_text_on_headings_and_listings_can_be_read(ink, theme):
    assert contrast(colour(ink, theme), colour("faint", theme)) >= 4.5


# What stands beside each other in one drawing. (Waiting is hatched as well, tests are dashed as well.)
TOGETHER = [
    ("blue", "orange", "violet", "gray", "green"),  # the timeline; green has a track of its own
    ("green", "rose", "gray"),  # overlap
    ("blue", "orange", "green"),  # the first three lines of a chart
    ("gray", "orange", "green"),  # the plan
]


@pytest.mark.parametrize("eyes", SEEN_BY)
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("marks", TOGETHER, ids="-".join)
def test_marks_can_be_told_apart(marks, theme, eyes):
    for one, other in itertools.combinations(marks, 2):
        distance = apart(colour(one, theme), colour(other, theme), SEEN_BY[eyes])
        assert distance >= 12, f"{one} and {other}: {distance:.0f}"
