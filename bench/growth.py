"""Growth: bytes per worker and seconds per iteration as the number of hosts grows, beside the plan's and DDP's.

    sudo python -m bench.growth [--subjects alexnet,resnet50] [--hosts 2,4,8,16] [--rate 1gbit] [--iterations 6]
    python -m bench.growth --draw            the picture of docs/performance.md, from docs/performance/growth.json

Paced training in the lab (`lab_worker.py`). Bytes are what the link of host 0 counts in an iteration, headers and all;
ours stand beside the plan's prediction, DDP's beside the ring's formula, 2 · bytes · (P − 1) / P.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bench.lab import run_once
from bench.lab_nets import SUBJECTS
from bench.netlab import payload_seconds
from bench.papers_page import svg_of, table

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "performance"
RAW = FOLDER / "growth.json"


def measure(subject: str, num_hosts: int, options: argparse.Namespace) -> dict[str, Any]:
    asked = argparse.Namespace(
        hosts=num_hosts, rate=options.rate, iterations=options.iterations, compute_s=None, timeout=900.0
    )
    ours, ddp = (run_once(contender, subject, asked) for contender in ("auto", "ddp"))
    compute_s = SUBJECTS[subject].compute_s
    return {
        "subject": subject,
        "hosts": num_hosts,
        "rate": options.rate,
        "compute_s": compute_s,
        "planned_bytes": ours["bytes_sent"],
        "counted_bytes": ours["link_bytes"],
        "ring_bytes": 2 * ours["dense_bytes"] * (num_hosts - 1) / num_hosts,
        "ddp_bytes": ddp["link_bytes"],
        "planned_s": ours["predicted_s"],
        "ours_s": ours["median_s"],
        "ddp_s": ddp["median_s"],
        "limit_s": max(compute_s, payload_seconds(ours["bytes_sent"], options.rate)),
    }


def text(points: list[dict[str, Any]]) -> str:
    head = ["net", "hosts", "MB planned", "MB counted", "counted / planned", "DDP's MB", "/ ring's", "limit, s"]
    head += ["planned, s", "ours, s", "DDP, s", "DDP / ours"]
    rows = [
        [
            point["subject"],
            str(point["hosts"]),
            f"{point['planned_bytes'] / 1e6:.1f}",
            f"{point['counted_bytes'] / 1e6:.1f}",
            f"{point['counted_bytes'] / point['planned_bytes']:.3f}",
            f"{point['ddp_bytes'] / 1e6:.1f}",
            f"{point['ddp_bytes'] / point['ring_bytes']:.3f}",
            *(f"{point[name]:.3f}" for name in ("limit_s", "planned_s", "ours_s", "ddp_s")),
            f"{point['ddp_s'] / point['ours_s']:.2f}",
        ]
        for point in points
    ]
    return table(head, rows)


def draw(points: list[dict[str, Any]]) -> bytes:
    """A row per net: bytes on the left, seconds on the right, over the number of hosts."""
    subjects = list(dict.fromkeys(point["subject"] for point in points))
    figure = Figure(figsize=(10, 3.4 * len(subjects)))
    panels: Any = figure.subplots(len(subjects), 2, squeeze=False)
    for row, subject in zip(panels, subjects, strict=True):
        here = [point for point in points if point["subject"] == subject]
        hosts = [point["hosts"] for point in here]

        def line(panel: Any, name: str, label: str, style: str, hosts: list[int] = hosts, here: Any = here) -> None:
            panel.plot(hosts, [point[name] / (1e6 if "bytes" in name else 1) for point in here], style, label=label)

        line(row[0], "ring_bytes", "ring of the whole gradient, by formula", "k:")
        line(row[0], "ddp_bytes", "DDP, counted", "C1s")
        line(row[0], "planned_bytes", "ours, planned", "C0-")
        line(row[0], "counted_bytes", "ours, counted", "C0o")
        line(row[1], "ddp_s", "DDP", "C1s-")
        line(row[1], "ours_s", "ours", "C0o-")
        line(row[1], "planned_s", "ours, planned", "C0--")
        line(row[1], "limit_s", "limit", "k:")
        row[0].set(ylabel="MB per worker and iteration", title=subject)
        row[1].set(ylabel="seconds per iteration", title=subject)
        for panel in row:
            panel.set(xlabel="hosts", xscale="log", ylim=(0, None))
            panel.set_xticks(hosts, labels=list(map(str, hosts)), minor=False)
            panel.set_xticks([], minor=True)
            panel.legend(fontsize=7)
    figure.tight_layout()
    return svg_of(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", default="alexnet,resnet50")
    parser.add_argument("--hosts", default="2,4,8,16")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--json", type=Path, default=RAW)
    parser.add_argument("--draw", action="store_true", help="only the picture, from figures that are there")
    options = parser.parse_args()
    if not options.draw:
        points = []
        for subject in options.subjects.split(","):
            for num_hosts in map(int, options.hosts.split(",")):
                points.append(measure(subject, num_hosts, options))
                print(text(points[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(points, indent=1) + "\n")
    points = json.loads(options.json.read_text())
    options.json.with_suffix(".svg").write_bytes(draw(points))
    print(text(points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
