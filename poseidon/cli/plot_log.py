"""plot-log: `poseidon plot-log CHART IMAGE.png LOG...` draws one of eight charts of training logs."""

from __future__ import annotations

import argparse

from poseidon.cli.command import Command, Flags, Operand
from poseidon.errors import UsageError
from poseidon.tools.log_charts import CHARTS

_LISTED = ", ".join(f"{number} {chart.title}" for number, chart in enumerate(CHARTS))


def declare(flags: Flags) -> None:
    flags.operands(
        Operand("CHART", f"its number: {_LISTED}"),
        Operand("IMAGE", "the PNG file to write"),
        Operand("LOG", "logs of training runs, one line each", many=True),
    )


def run(found: argparse.Namespace) -> int:
    from poseidon.tools.log_charts import draw_chart
    from poseidon.tools.training_log import read_log

    if not (found.chart.isascii() and found.chart.isdecimal() and int(found.chart) < len(CHARTS)):
        raise UsageError(f"there is no chart {found.chart!r}; charts: {_LISTED}")
    draw_chart(CHARTS[int(found.chart)], [read_log(path) for path in found.log], found.image)
    return 0


COMMAND = Command(declare, run)
