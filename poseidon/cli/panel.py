"""Panel: the lines below the progress bar of a training run.

loss      ▇▆▅▄▃▃▂▂▁▁▁▁ 0.0324   accuracy ▁▄▆▇██ 0.9812   7,550 images/s
rank 0    ████████████████████████████████▒▒▒▒▒▒▒▒  80% compute, 20% wait
rank 1    ██████████████████████████████████▒▒▒▒▒▒  86% compute, 14% wait
wire      ███████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  34.2 of 117 MB/s   factors 61%, ring 39%

What workers do comes with their signs of life, about once a second; nobody is asked for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from poseidon.cli.sparkline import Curve, sparkline
from poseidon.log_line import number
from poseidon.run.view import JobView
from poseidon.transport.vitals import Vitals

_LABEL = 10
_MOST_WORKERS = 8
_LEAST_WIDTH = 60
_LEAST_HEIGHT = 12
_SPEED_S = 2.0  # over which bytes on the wire are counted


@dataclass(slots=True)
class Panel:
    """Tell it what is new; it is drawn by another thread, which only reads.

    unit_name       what a sample is called: images, or samples
    per_iteration   samples of one iteration over all workers; None: nobody knows
    """

    loss: Curve = field(default_factory=Curve)
    score: Curve = field(default_factory=Curve)
    score_name: str = ""
    unit_name: str = "samples"
    per_iteration: float | None = None
    iterations_per_s: float | None = None
    view: JobView | None = None
    now: Callable[[], float] = time.monotonic
    _sent: list[tuple[float, float]] = field(default_factory=list)  # times, and bytes sent until then

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width < _LEAST_WIDTH or console.height < _LEAST_HEIGHT:
            return
        lines = [self._learning(options), *self._workers(options), *self._exchange(options)]
        for line in lines:
            if line.plain.strip():
                line.truncate(options.max_width)
                yield line

    # -- lines ------------------------------------------------------------------------------------------------------
    def _learning(self, options: ConsoleOptions) -> Text:
        speed = ""
        if self.per_iteration is not None and self.iterations_per_s:
            speed = f"{short(self.per_iteration * self.iterations_per_s)} {self.unit_name}/s"
        curves = [(name, curve) for name, curve in (("loss", self.loss), (self.score_name, self.score)) if curve.values]
        if not curves:
            return Text(speed)
        shown = [number(curve.last if curve.last is not None else 0.0) for _, curve in curves]
        # Everything but the curves: a label in front, blanks around what stands beside them.
        taken = _LABEL + sum(len(value) + 1 for value in shown) + len(speed) + 3
        taken += sum(len(name) + 4 for name, _ in curves[1:])
        width = max((options.max_width - taken) // len(curves), 4)
        text = Text(f"{curves[0][0]:{_LABEL}}")
        for place, (name, curve) in enumerate(curves):
            text.append(f"   {name} " if place else "")
            text.append(sparkline(curve.values, width, ascii_only=options.ascii_only), style="cyan")
            text.append(f" {shown[place]}")
        return text.append(f"   {speed}" if speed else "", style="bold")

    def _workers(self, options: ConsoleOptions) -> Iterable[Text]:
        if self.view is None:
            return
        shares = wait_shares(self.view.vitals())
        chosen = sorted(sorted(shares, key=lambda rank: shares[rank])[:_MOST_WORKERS])
        for rank in chosen:
            share = shares[rank]
            told = f"  {100 - round(share * 100):3}% compute, {round(share * 100):2}% wait"
            marks = "#." if options.ascii_only else "█▒"
            text = Text(f"{f'rank {rank}':{_LABEL}}")
            width = max(options.max_width - _LABEL - len(told) - 2, 4)
            filled = round((1 - share) * width)
            text.append(marks[0] * filled, style="green").append(marks[1] * (width - filled), style="yellow")
            yield text.append(told)
        if len(chosen) < len(shares):
            rest = [share for rank, share in shares.items() if rank not in chosen]
            told = f"{100 * min(rest):.0f}% to {100 * max(rest):.0f}% wait"
            yield Text(f"{'others':{_LABEL}}{len(rest)} workers that wait longer: {told}")

    def _exchange(self, options: ConsoleOptions) -> Iterable[Text]:
        view = self.view
        if view is None:
            return
        schemes = ", ".join(f"{scheme.value} {share:.0%}" for scheme, share in view.scheme_shares().items())
        if view.bandwidth is None:
            yield Text(f"{'exchange':{_LABEL}}in the memory all workers share   {schemes}")
            return
        speed = self._wire_speed(view.sent_bytes())
        told = f"  {speed / 1e6:.3g} of {view.bandwidth / 1e6:.3g} MB/s   {schemes}"
        width = max(options.max_width - _LABEL - len(told) - 2, 4)
        filled = min(round(speed / view.bandwidth * width), width)
        marks = "#." if options.ascii_only else "█░"
        text = Text(f"{'wire':{_LABEL}}").append(marks[0] * filled, style="magenta")
        yield text.append(marks[1] * (width - filled), style="dim").append(told)

    def _wire_speed(self, sent: float) -> float:
        """Bytes per second, of the last few seconds."""
        self._sent.append((self.now(), sent))
        while len(self._sent) > 2 and self._sent[-1][0] - self._sent[1][0] >= _SPEED_S:
            self._sent.pop(0)
        (first_s, before), (last_s, after) = self._sent[0], self._sent[-1]
        return (after - before) / (last_s - first_s) if last_s > first_s else 0.0


def wait_shares(vitals: Mapping[int, Vitals]) -> dict[int, float]:
    """By rank: which part of the time a worker waits, between 0 and 1."""
    return {rank: min(max(found.figures.get("wait_share", 0.0), 0.0), 1.0) for rank, found in vitals.items()}


def short(value: float) -> str:
    """Three digits, and thousands apart: 7,550 or 12.3."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"
