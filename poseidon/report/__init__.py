"""The report of a run: one HTML page that needs nothing else.

    from poseidon import record, report
    text = report.report(record.read("runs/lenet"))

Everything is computed first (`contents.py`, with `overlap.py`, `speed.py`, `traffic.py`, …), then laid out (`page.py`,
`sections.py`); what moves on the page is in `page/*.js`.
"""

from __future__ import annotations

from poseidon.record import Run
from poseidon.report.contents import ReportOptions, contents_of
from poseidon.report.page import page_of
from poseidon.report.timeline import Shown

__all__ = ["ReportOptions", "Shown", "report"]


def report(run: Run, options: ReportOptions | None = None) -> str:
    """The page."""
    return page_of(contents_of(run, options or ReportOptions(Shown())))
