"""Notified puts beside c10d's gloo and a bare TCP echo: latency, bandwidth, and what waiting costs.

    sudo python -m bench.onesided [--rounds 7] [--json OUT]

    wire        two hosts of the lab, 1 Gbit/s (`netlab.py`): half a round trip of 8 bytes, MB/s of long puts against
                what the link can carry (1448 of every 1540 bytes)
    loopback    two processes of this host, by TCP;   shared memory   the same, by shared memory
    idle        processor time of a process that waits for a notification

All contenders of a place run in the same two processes and take turns; figures are medians over the rounds. Each
process keeps to a core of its own, as a host would: left to itself, the scheduler moves some pairs onto one core, where
they hand over four times as fast, and not others.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bench.netlab import PAYLOAD_FRACTION, Lab, Links, rate_bps
from poseidon.errors import TransportTimeout
from poseidon.transport.c10d import C10dOptions, C10dTransport, Master, connect
from poseidon.transport.onesided import Endpoint, Note, Spot
from poseidon.transport.onesided.joining import OneSidedOptions, open_endpoint

ROOT = Path(__file__).resolve().parent.parent
RATE = "1gbit"
PINGS = 300
SIZES = (1 << 20, 4 << 20, 16 << 20)
PLACES = ("wire", "loopback", "shared memory")
IDS = range(8)


class Pair:
    """One of two workers: gloo, a one-sided endpoint and a bare connection to the other."""

    def __init__(self, place: str) -> None:
        self.rank = int(os.environ["RANK"])
        self.address = f"10.77.0.{self.rank + 1}" if place == "wire" else "127.0.0.1"
        master = Master(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self.transport: C10dTransport = connect(self.rank, 2, master, C10dOptions(address=self.address))
        options = OneSidedOptions(self.address, shares_memory=place != "loopback")
        self.end: Endpoint = open_endpoint(self.transport, options)
        self.end.allocate(0, 2 * SIZES[-1])
        self.bare = self._connect()
        self.transport.barrier(30.0)

    def _connect(self) -> socket.socket:
        port = torch.zeros(1, dtype=torch.int64)
        if self.rank == 0:
            with socket.create_server((self.address, 0)) as listener:
                port[0] = listener.getsockname()[1]
                self.transport.broadcast(port, 0).wait()
                connection, _ = listener.accept()
        else:
            self.transport.broadcast(port, 0).wait()
            address = "10.77.0.1" if self.address != "127.0.0.1" else self.address
            connection = socket.create_connection((address, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def half_round_trip_s(self, ping: Callable[[int], None], pong: Callable[[int], None]) -> float:
        self.transport.barrier(30.0)
        started_s = time.perf_counter()
        for number in range(1, PINGS + 1):
            (ping if self.rank == 0 else pong)(number)
        return (time.perf_counter() - started_s) / PINGS / 2

    # -- contenders -------------------------------------------------------------------------------------------------
    def echo_s(self) -> float:
        memory = bytearray(8)

        def ping(_: int) -> None:
            self.bare.sendall(memory)
            self.bare.recv_into(memory)

        def pong(_: int) -> None:
            self.bare.recv_into(memory)
            self.bare.sendall(memory)

        return self.half_round_trip_s(ping, pong)

    def gloo_s(self) -> float:
        message, group, other = torch.zeros(8, dtype=torch.uint8), self.transport._points, 1 - self.rank

        def send() -> None:
            group.send([message], other, 5).wait()

        def receive() -> None:
            group.recv([message], other, 5).wait()

        return self.half_round_trip_s(lambda _: (send(), receive()), lambda _: (receive(), send()))

    def put_s(self) -> float:
        message, spot = torch.zeros(8, dtype=torch.uint8), Spot(1 - self.rank, 0)
        end = self.end

        def send(number: int) -> None:
            end.write_notify(message, spot, Note(0, number))

        def receive(number: int) -> None:
            value = end.reset(end.waitsome(IDS, 30.0))
            assert value == number, (value, number)

        return self.half_round_trip_s(
            lambda number: (send(number), receive(number)), lambda number: (receive(number), send(number))
        )

    def rate(self, num_bytes: int) -> float:
        """Bytes per second of puts, two in flight, each acknowledged."""
        total = max(16, (64 << 20) // num_bytes)
        message, spots = torch.ones(num_bytes, dtype=torch.uint8), (Spot(1, 0), Spot(1, 0, num_bytes))
        self.transport.barrier(30.0)
        started_s = time.perf_counter()
        for number in range(1, total + 1):
            if self.rank == 0:
                self.end.write_notify(message, spots[number % 2], Note(1 + number % 2, number), queue=3)
                if number > 1:
                    self._expect(3 + (number - 1) % 2)
            else:
                self._expect(1 + number % 2)
                self.end.notify(0, Note(3 + number % 2, number))
        if self.rank == 0:
            self._expect(3 + total % 2)
        return total * num_bytes / (time.perf_counter() - started_s)

    def _expect(self, id: int) -> None:
        self.end.reset(self.end.waitsome([id], 60.0))

    def idle_share(self) -> float:
        """Processor time per second of waiting."""
        self.transport.barrier(30.0)
        started_s, used_s = time.perf_counter(), time.process_time()
        with contextlib.suppress(TransportTimeout):
            self.end.waitsome([7], 2.0)
        return (time.process_time() - used_s) / (time.perf_counter() - started_s)


def measure(place: str, rounds: int) -> dict[str, float]:
    """One worker's part."""
    torch.set_num_threads(1)
    sys.setswitchinterval(0.0005)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
    pair = Pair(place)
    contenders: dict[str, Callable[[], float]] = {"echo": pair.echo_s, "gloo": pair.gloo_s, "put": pair.put_s}
    contenders |= {f"rate {size >> 20} MB": lambda size=size: pair.rate(size) for size in SIZES}
    for contender in contenders.values():
        contender()
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            found[name].append(contender())
    results = {name: statistics.median(values) for name, values in found.items()}
    results["idle"] = pair.idle_share()
    pair.transport.barrier(30.0)
    pair.end.close()
    pair.transport.close()
    return results


def run(place: str, rounds: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.onesided", "--worker", place, "--rounds", str(rounds)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "out.json")
        if place == "wire":
            os.environ["PYTHONPATH"] = str(ROOT)
            with Lab(f"os{os.getpid()}", 2, Links((RATE,))) as lab:
                code = lab.run([*command, "--out", out], show_all=True)
        else:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port = probe.getsockname()[1]
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
            workers = [
                subprocess.Popen([*command, "--out", out], cwd=ROOT, env={**environment, "RANK": str(rank)})
                for rank in range(2)
            ]
            code = max(worker.wait() for worker in workers)
        if code:
            raise SystemExit(f"bench.onesided: a worker failed with exit code {code}")
        return json.loads(Path(out).read_text())


def show(results: dict[str, dict[str, float]]) -> None:
    print(f"\n{'half a round trip, µs':24}{'put':>9}{'gloo':>9}{'echo':>9}{'put/gloo':>10}{'put/echo':>10}{'idle':>8}")
    for place, found in results.items():
        times = [found[name] * 1e6 for name in ("put", "gloo", "echo")]
        ratios = f"{times[0] / times[1]:>10.2f}{times[0] / times[2]:>10.2f}"
        print(f"{place:24}" + "".join(f"{value:>9.1f}" for value in times) + ratios + f"{found['idle']:>8.1%}")
    print(f"\n{'MB/s':24}" + "".join(f"{size >> 20:>10} MB" for size in SIZES))
    limit = rate_bps(RATE) / 8 * PAYLOAD_FRACTION
    for place, found in results.items():
        rates = [found[f"rate {size >> 20} MB"] for size in SIZES]
        shares = f"   of the link: {', '.join(f'{rate / limit:.2f}' for rate in rates)}" if place == "wire" else ""
        print(f"{place:24}" + "".join(f"{rate / 1e6:>13.0f}" for rate in rates) + shares)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--worker", choices=PLACES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.worker:
        found = measure(options.worker, options.rounds)
        if os.environ["RANK"] == "0":
            options.out.write_text(json.dumps(found))
        return 0
    results = {place: run(place, options.rounds) for place in options.places.split(",")}
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
