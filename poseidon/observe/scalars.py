"""A metric as named numbers, as TensorBoard and Weights & Biases draw them: one curve for each name."""

from __future__ import annotations

from poseidon.record import Metric
from poseidon.record.metric import TRAIN


def scalars_of(metric: Metric) -> dict[str, float]:
    """`train/loss`, `test/accuracy`, `speed/samples_per_second`, `rank 0/wait_seconds`, …, as far as known."""
    phase = metric.phase if not metric.net_index else f"{metric.phase} {metric.net_index}"
    found: dict[str, float | None] = {f"{phase}/{name}": value for name, value in metric.outputs.items()}
    # The sum of all losses, smoothed, beside losses of the same name.
    found[f"{phase}/total_loss"] = metric.loss
    if metric.phase == TRAIN:
        found["train/learning_rate"] = metric.lr
        found["speed/samples_per_second"] = metric.samples_per_second
        found["speed/iteration_seconds"] = metric.iteration_seconds
    for worker in metric.workers:
        found[f"rank {worker.rank}/compute_seconds"] = worker.compute_s
        found[f"rank {worker.rank}/wait_seconds"] = worker.wait_s
        found[f"rank {worker.rank}/sent_bytes"] = worker.sent_bytes
        found[f"rank {worker.rank}/received_bytes"] = worker.received_bytes
        found[f"rank {worker.rank}/staleness"] = worker.staleness
    return {name: value for name, value in found.items() if value is not None}
