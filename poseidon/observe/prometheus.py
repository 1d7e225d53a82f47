"""Prometheus as a sink: the latest figures at http://ADDRESS:PORT/metrics, in its text format (version 0.0.4).

Only figures are served, to whoever can reach the address: bind it to one that only those reach who may know.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from poseidon.errors import UsageError
from poseidon.record import Facts, Metric

_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
_TIMEOUT_S = 10.0  # of somebody who connects and asks for nothing

# Name, help, and how the values of a metric are called by labels.
_ABOUT = {
    "poseidon_run_info": "What runs: always 1.",
    "poseidon_iteration": "Iteration of the latest figures.",
    "poseidon_loss": "Sum of all losses, smoothed as the solver shows it.",
    "poseidon_output": "An output of the net.",
    "poseidon_learning_rate": "Learning rate.",
    "poseidon_samples_per_second": "Samples per second, all workers together.",
    "poseidon_iteration_seconds": "Seconds of an iteration.",
    "poseidon_worker_compute_seconds": "Seconds of an iteration in which a worker computes.",
    "poseidon_worker_wait_seconds": "Seconds of an iteration in which a worker waits.",
    "poseidon_worker_sent_bytes": "Payload that a worker sends in an iteration.",
    "poseidon_worker_received_bytes": "Payload that a worker receives in an iteration.",
    "poseidon_worker_staleness": "Clocks by which the oldest parameters were behind that a worker has read.",
}

Sample = tuple[str, float]  # labels as they stand in the text, and the value


class Prometheus:
    """Serves from its own threads, until `end`."""

    def __init__(self, address: str, port: int) -> None:
        self._samples: dict[str, dict[str, float]] = {}  # by name of a metric and its labels
        self._lock = threading.Lock()
        try:
            self._server = _Server(address, port, self.text)
        except (OSError, OverflowError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
            raise UsageError(
                f"--metrics-port={port}: cannot serve figures at {address}: {reason}; choose another port (0: any), or "
                "another --metrics-address"
            ) from None
        self.port = self._server.server_address[1]
        host = f"[{address}]" if ":" in address else address
        self.line = f"metrics   http://{host}:{self.port}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="poseidon-metrics", daemon=True)
        self._thread.start()

    def begin(self, facts: Facts) -> None:
        workers = str(facts.cluster.get("workers", 1))
        labels = _labels(workers=workers, version=str(facts.cluster.get("poseidon", "")), kind=facts.kind)
        self._set("poseidon_run_info", labels, 1.0)

    def write(self, metric: Metric) -> None:
        with self._lock:
            for name, labels, value in _entries(metric):
                self._samples.setdefault(name, {})[labels] = value

    def end(self, facts: Facts) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _set(self, name: str, labels: str, value: float) -> None:
        with self._lock:
            self._samples.setdefault(name, {})[labels] = value

    def text(self) -> str:
        """All figures, as Prometheus wants them."""
        lines = []
        with self._lock:
            for name, about in _ABOUT.items():
                samples = self._samples.get(name)
                if samples:
                    lines += [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
                    lines += [f"{name}{labels} {_number(value)}" for labels, value in samples.items()]
        return "".join(f"{line}\n" for line in lines)


def _entries(metric: Metric) -> Iterator[tuple[str, str, float]]:
    """Name, labels and value of everything that a metric tells."""
    phase, net = metric.phase, str(metric.net_index)
    yield "poseidon_iteration", _labels(phase=phase), float(metric.iteration)
    if metric.loss is not None:
        yield "poseidon_loss", _labels(phase=phase, net=net), metric.loss
    for name, value in metric.outputs.items():
        if value is not None:
            yield "poseidon_output", _labels(phase=phase, net=net, name=name), value
    figures = {
        "poseidon_learning_rate": metric.lr,
        "poseidon_samples_per_second": metric.samples_per_second,
        "poseidon_iteration_seconds": metric.iteration_seconds,
    }
    for name, known in figures.items():
        if known is not None:
            yield name, "", known
    for worker in metric.workers:
        labels = _labels(rank=str(worker.rank))
        yield "poseidon_worker_compute_seconds", labels, worker.compute_s
        yield "poseidon_worker_wait_seconds", labels, worker.wait_s
        yield "poseidon_worker_sent_bytes", labels, worker.sent_bytes
        yield "poseidon_worker_received_bytes", labels, worker.received_bytes
        yield "poseidon_worker_staleness", labels, worker.staleness


def _labels(**values: str) -> str:
    escaped = {
        name: value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for name, value in values.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"


def _number(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(str(value), str(value))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: str, port: int, text: object) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.text = text
        super().__init__((address, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _TIMEOUT_S
    server_version = "poseidon"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/metrics", "/"):
            self.send_error(HTTPStatus.NOT_FOUND, "figures are at /metrics")
            return
        assert callable(self.server.text)
        body = self.server.text().encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", _FORMAT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody wants to read who has asked."""
