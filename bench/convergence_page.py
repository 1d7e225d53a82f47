"""docs/convergence.md and its pictures, from the runs of `bench/convergence.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from bench.convergence import (
    BATCH,
    FOLDER,
    LIMIT_POINTS,
    SCHEMES,
    STALENESS,
    SUBJECTS,
    WORKERS,
    Run,
    beside_single,
    difference,
    exact,
    outside,
    read_runs,
    setups,
)
from bench.papers_page import svg_of, table

PAGE = FOLDER.parent / "convergence.md"
INTRODUCTION = f"""\
# Convergence

<!-- Written by `python -m bench.convergence --page`. -->

The same training on 1, 2, 4 and 8 workers of one host, by every scheme, exact and stale. All workers together have the
single worker's batch of {BATCH}, the same start and the same records, so that every exact run should follow the single
worker's trajectory but for the order in which sums are rounded; the last accuracy must lie within {LIMIT_POINTS} points
of the single worker's. The rate falls linearly to zero. With `--staleness 3` a worker may be three clocks ahead of the
slowest; there the difference is shown, not bounded.

```
apt-get install dataset-fashion-mnist                  # Fashion-MNIST, where Debian or Ubuntu has it
poseidon data mnist data                               # or --from mnist=FOLDER with the four files
python -m bench.convergence                            # makes Fashion-MNIST's database from that package
python -m bench.convergence --page
```

Seconds are those of 2 cores for all workers, shared with other work: they show that the runs were run, not how well
they scale ([performance.md](performance.md) and [papers.md](papers.md) do that).
"""


def accuracies_text(runs: Sequence[Run], single: Run) -> str:
    """A line per way to exchange, a column per number of workers."""
    ways: list[tuple[str, int | None]] = [(scheme, None) for scheme in SCHEMES]
    ways += [("server", staleness) for staleness in STALENESS]
    rows = []
    for scheme, staleness in ways:
        cells = []
        for workers in WORKERS[1:]:
            found = [
                r for r in runs if (r.setup.workers, r.setup.scheme, r.setup.staleness) == (workers, scheme, staleness)
            ]
            cells.append(f"{found[0].accuracy:.2%} ({difference(found[0], single):+.2f})" if found else "")
        if any(cells):
            rows.append([scheme if staleness is None else f"`--staleness {staleness}`", *cells])
    return table(["last accuracy (points from 1 worker's)", *(f"{workers} workers" for workers in WORKERS[1:])], rows)


def verdict_text(runs: Sequence[Run], single: Run) -> str:
    found = exact(runs)
    if not found:
        return ""
    worst = max(found, key=lambda run: abs(difference(run, single)))
    num_outside = len(outside(runs, single))
    told = f"{len(found)} exact runs, the farthest {difference(worst, single):+.2f} points ({worst.setup.label})"
    return f"{told}: {f'{len(found) - num_outside}' if num_outside else 'all'} within {LIMIT_POINTS} points."


def draw(runs: Sequence[Run], title: str) -> bytes:
    """Training loss and test accuracy, against samples and against seconds; the single worker's in black."""
    figure = Figure(figsize=(11, 7))
    panels: Any = figure.subplots(2, 2)
    for column, (at, axis) in enumerate(((0, "samples"), (1, "seconds"))):
        for run in sorted(runs, key=lambda run: run.setup.workers == 1):
            is_single = run.setup.workers == 1
            style: dict[str, Any] = {"linewidth": 1.8 if is_single else 0.7, "color": "black" if is_single else None}
            if run.setup.staleness:
                style["linestyle"] = "--"
            label = run.setup.label
            panels[0][column].plot([p[at] for p in run.losses], [p[2] for p in run.losses], label=label, **style)
            panels[1][column].plot([p[at] for p in run.tests], [p[3] for p in run.tests], label=label, **style)
        panels[0][column].set(yscale="log", xlabel=axis, ylabel="training loss")
        panels[1][column].set(xlabel=axis, ylabel="test accuracy")
    panels[1][1].legend(fontsize=5, ncols=2)
    panels[0][0].set_title(title, loc="left")
    figure.tight_layout()
    return svg_of(figure)


def write_page() -> None:
    runs = read_runs()
    parts = [INTRODUCTION.strip()]
    for name, subject in SUBJECTS.items():
        found = beside_single(runs, name)
        if found is None:
            continue
        single, of_length = found
        (FOLDER / f"{name}.svg").write_bytes(draw(of_length, subject.title))
        wanted = list(setups([name], list(WORKERS), single.setup.iterations))
        count = f"{len(of_length)} of {len(wanted)} runs are here. One worker: **{single.accuracy:.2%}**."
        heading = f"## {subject.title}\n\n{single.setup.iterations} iterations of {BATCH} records. {count}"
        picture = f"![loss and accuracy](convergence/{name}.svg)"
        parts += [heading, accuracies_text(of_length, single), verdict_text(of_length, single), picture]
    parts.append("Raw data: [convergence/runs.jsonl](convergence/runs.jsonl), one run per line.")
    PAGE.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    print(f"wrote {PAGE}")
