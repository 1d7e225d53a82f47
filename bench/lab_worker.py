"""One worker of one contender in the lab, with paced compute; rank 0 prints its figures as a line of JSON.

    python -m bench.lab_worker --contender auto --subject alexnet …

Contenders: auto, gpi, ring, server, factors, factor-server, and ddp, ddp-fp16, ddp-powersgd.

With --seen FOLDER every rank also writes `seen-<rank>.json`: what the simulator needs to play the same run, and what it
has to agree with. That is the profile, the plan with the cluster as measured, and every event of communication with its
time, on one clock for all ranks, since all hosts are this machine.

Gradients and factors are real tensors of real sizes and really travel; what a GPU would compute is a sleep
(`lab_device.py`), for all contenders alike.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from bench.lab_device import PacedDevice, Pauses
from bench.lab_nets import GPU_FLOPS, GPU_UPDATE_ELEMS, SUBJECTS, Subject
from bench.netlab import sent_bytes
from poseidon.comm import Part, Scheduler, Taps, make_exchanges
from poseidon.comm.events import CommEvent
from poseidon.comm.factors import FactorExchange
from poseidon.comm.notified.driver import NotifiedScheduler
from poseidon.comm.notified.memory import Memory
from poseidon.net import Net
from poseidon.net.layers.inner_product import InnerProduct
from poseidon.plan import GPI, Cluster, CommPlan, PlanRequest, make_plan, parse_scheme
from poseidon.run.layer_times import LayerTime, estimated_times, scaled_times
from poseidon.run.profile import profile_net
from poseidon.spec import parse_net
from poseidon.transport.c10d import C10dOptions, Master, connect
from poseidon.transport.collectives import all_gather, reduce_shards, shards_of
from poseidon.transport.probe import PROBE_TAG, probe

HANDLED_BYTES = 8 << 20
HANDLING_PASSES = 7
BRIEF_S = 1e-3  # less is Python, which a GPU's queue hides
Iterate = Callable[[], None]


def build(subject: Subject) -> tuple[Net, list[LayerTime]]:
    net = Net(parse_net(subject.text()), phase="TRAIN", seed=1)
    return net, scaled_times(estimated_times(net, GPU_FLOPS), subject.compute_s)


# -- ours -----------------------------------------------------------------------------------------------------------
class Ours:
    """Our scheduler and exchanges under a net whose layers only take time."""

    def __init__(self, options: argparse.Namespace, subject: Subject) -> None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        master = Master(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self.transport = connect(rank, size, master, C10dOptions(address=options.address))
        self.net, self.times = build(subject)
        self.device = PacedDevice()
        self.num_layers = len(self.times)
        self.plan = self._plan(options, size)
        exchanges = make_exchanges(self.net, self.plan, self.transport)
        self._stand_in(exchanges)
        self.scheduler: Scheduler | NotifiedScheduler
        if self.plan.pattern == GPI:
            memory = Memory(self.plan, exchanges, self.transport)
            self.scheduler = NotifiedScheduler(self.plan, exchanges, self._apply, memory)
        else:
            self.seen: list[list[Any]] = []
            self.scheduler = Scheduler(self.plan, exchanges, self._apply, self._see if options.seen else None)
        self.taps = Taps(self.net, exchanges, self.scheduler)
        self._gradients = {entry.value: torch.zeros_like(entry.value) for entry in self.net.learnable}
        self._handling_s: list[float] = []
        self._factors = {node.layer.name: _factors(node) for node in self.net.graph.nodes}

    def _plan(self, options: argparse.Namespace, size: int) -> CommPlan:
        cluster = Cluster(
            node_workers=(1,) * size,
            **probe(self.transport).figures(),
            send_s=0.0,  # the processor's time, which a GPU does not miss
            flops=GPU_FLOPS,
            update_bps=GPU_UPDATE_ELEMS * 32,
        )
        if options.contender == GPI:
            request = PlanRequest(pattern=GPI)
        else:
            request = PlanRequest(scheme=None if options.contender == "auto" else parse_scheme(options.contender))
        return make_plan(profile_net(self.net, self.times), cluster, request)

    def _see(self, event: CommEvent) -> None:
        send = getattr(event, "send", None)
        place = None if send is None else [send.start, send.stop]
        self.seen.append([time.perf_counter(), type(event).__name__, event.unit, place])

    def _stand_in(self, exchanges: list[Any]) -> None:
        """Products of factors take a GPU's time and give a gradient that nobody reads."""

        def product(exchange: FactorExchange, a: Tensor, b: Tensor) -> Tensor:
            self.device.ask(2 * a.shape[0] * a.shape[1] * b.shape[1] / GPU_FLOPS)  # the update waits for it
            return torch.empty(a.shape[1], b.shape[1])

        for exchange in exchanges:
            if isinstance(exchange, FactorExchange):
                exchange.product = partial(product, exchange)

    def _apply(self, parts: list[Part], context: Any) -> None:
        self.device.run(sum(part.grad.numel() for part in parts) / GPU_UPDATE_ELEMS)

    def iterate(self) -> None:
        nodes = self.net.graph.nodes
        for node, seconds in zip(nodes, self.times, strict=True):
            begin = time.perf_counter()
            for index in range(node.layer.num_params if node.layer.gate is not None else 0):
                node.layer.gate(index)
            if time.perf_counter() - begin > BRIEF_S:
                self.device.waited()
            self.device.layer(seconds.forward_s)
        self.taps.arm(None)
        for node, seconds in zip(reversed(nodes), reversed(self.times), strict=True):
            self.device.layer(seconds.backward_s)
            if node.layer.num_params:
                self.device.reach()
            tap = node.layer.factor_tap if isinstance(node.layer, InnerProduct) else None
            if tap is not None:
                tap(*self._factors[node.layer.name])
            for index in range(node.layer.num_params):
                parameter = node.layer.param_owner(index)
                if parameter.requires_grad:
                    parameter.grad = None if tap is not None else self._gradients[parameter]
                    self.taps.announce(parameter)
        self.taps.complete()

    def measure_handling(self) -> None:
        """Payload that goes through a host's processor: what a reduction to shards and a gather take of its time. All
        hosts of the lab have the same cores. Called before and after a run, whose speed lies in between."""
        size = self.transport.size
        shards = shards_of(torch.zeros(HANDLED_BYTES // 4), size)
        for _ in range(HANDLING_PASSES):
            self.transport.barrier(60.0)
            begin = time.process_time()
            reduce_shards(self.transport, shards, tag=PROBE_TAG).wait()
            all_gather(self.transport, shards, tag=PROBE_TAG).wait()
            self.transport.barrier(60.0)
            self._handling_s.append(time.process_time() - begin)
        handled = 2 * 2 * HANDLED_BYTES * (size - 1) / size  # both collectives, out and in
        share = min(1.0, len(os.sched_getaffinity(0)) / size)
        self.handling_bps = handled * 8 / statistics.median(self._handling_s) * share

    def seen_json(self, begun: list[float]) -> dict[str, Any]:
        return {
            "handling_bps": self.handling_bps,
            "profile": json.loads(profile_net(self.net, self.times).to_json()),
            "plan": json.loads(self.plan.to_json()),
            "begun": begun,
            "events": self.seen,
        }

    def close(self) -> None:
        self.scheduler.drain()
        self.taps.close()
        self.scheduler.close()
        self.transport.close()


def _factors(node: Any) -> tuple[Tensor, Tensor] | None:
    if not isinstance(node.layer, InnerProduct):
        return None
    outputs, inputs = node.layer.param_shapes[0]
    rows = node.bottom_shapes[0][0]
    return torch.zeros(rows, outputs), torch.zeros(rows, inputs)


# -- PyTorch's DistributedDataParallel --------------------------------------------------------------------------------
class _Paced(torch.autograd.Function):
    """A layer that takes its time, forward and backward, and gives its parameters gradients of their size."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, seconds: LayerTime, device: PacedDevice, grads: list[Tensor], *params: Tensor
    ) -> Tensor:
        ctx.seconds, ctx.device, ctx.grads = seconds, device, grads
        device.layer(seconds.forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        ctx.device.layer(ctx.seconds.backward_s)
        if ctx.grads:
            ctx.device.reach()
        return grad, None, None, None, *ctx.grads


class _PacedModel(nn.Module):
    def __init__(self, net: Net, times: list[LayerTime], device: PacedDevice) -> None:
        super().__init__()
        self.device = device
        self.weights = nn.ParameterList()
        self.layers: list[tuple[LayerTime, list[int]]] = []
        for node, seconds in zip(net.graph.nodes, times, strict=True):
            owners = [node.layer.param_owner(i) for i in range(node.layer.num_params)]
            places = []
            for owner in owners:
                if owner.requires_grad:
                    places.append(len(self.weights))
                    self.weights.append(nn.Parameter(torch.zeros_like(owner)))
            self.layers.append((seconds, places))
        # Made once, for all contenders: a GPU's gradients cost the host no page faults.
        self.gradients = [torch.zeros_like(weight) for weight in self.weights]

    def forward(self, x: Tensor) -> Tensor:
        for seconds, places in self.layers:
            gradients = [self.gradients[place] for place in places]
            x = _Paced.apply(x, seconds, self.device, gradients, *[self.weights[place] for place in places])
        return x.sum()


class Ddp:
    def __init__(self, options: argparse.Namespace, subject: Subject) -> None:
        dist.init_process_group("gloo")
        net, times = build(subject)
        self.device = PacedDevice()
        model = _PacedModel(net, times, self.device)
        self.num_layers = len(times)
        self.num_elems = sum(weight.numel() for weight in model.weights)
        del net
        self.model = nn.parallel.DistributedDataParallel(
            # PowerSGD's hook starts its second all-reduce from a callback: with several buckets ranks do so in
            # different order, which gloo does not survive. So it gets one bucket.
            model,
            bucket_cap_mb=10_000 if options.contender == "ddp-powersgd" else options.bucket_mb,
            gradient_as_bucket_view=True,
        )
        if options.contender == "ddp-fp16":
            self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        if options.contender == "ddp-powersgd":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def iterate(self) -> None:
        self.model.zero_grad()
        self.model(torch.zeros(1, requires_grad=True)).backward()
        self.device.run(self.num_elems / GPU_UPDATE_ELEMS)

    def close(self) -> None:
        dist.destroy_process_group()


def processor_s() -> tuple[float, float]:
    """What this process has used: of its own, and in the kernel."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", required=True)
    parser.add_argument("--subject", choices=SUBJECTS, required=True)
    parser.add_argument("--compute-s", type=float)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--warm-up", type=int, default=2, help="so many iterations before those do not count")
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    parser.add_argument("--address", default=None)
    parser.add_argument("--pauses", type=float, default=0.0, help="how likely a worker pauses in an iteration")
    parser.add_argument("--seen", type=Path, metavar="FOLDER", help="where ranks write what happened; of ours only")
    parser.add_argument("--calm", type=int, default=0, help="so many iterations are without pauses")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.setswitchinterval(0.0005)
    rank = int(os.environ["RANK"])
    options.address = options.address or f"10.77.0.{rank + 1}"
    subject = SUBJECTS[options.subject]
    if options.compute_s is not None:
        subject = Subject(subject.net, subject.batch, options.compute_s)
    contender = (Ddp if options.contender.startswith("ddp") else Ours)(options, subject)
    if isinstance(contender, Ours):
        if options.seen:
            contender.measure_handling()
        if rank == 0:
            print(contender.plan.table(), file=sys.stderr)
    pauses = Pauses(options.pauses, subject.compute_s / 2, options.calm + options.warm_up)
    times, begun, counts, used = [], [], [], []
    for iteration in range(options.warm_up + options.iterations):
        if iteration == options.warm_up:
            used.append(processor_s())
        counts.append(sent_bytes())
        contender.device.begin(pauses.place(rank, iteration, 2 * contender.num_layers), pauses.seconds)
        begin = time.perf_counter()
        contender.iterate()
        begun.append(begin)
        times.append(time.perf_counter() - begin)
    counts.append(sent_bytes())
    used.append(processor_s())
    if options.seen and isinstance(contender, Ours):
        contender.scheduler.drain()
        contender.measure_handling()
        (options.seen / f"seen-{rank}.json").write_text(json.dumps(contender.seen_json(begun)) + "\n")
    contender.close()
    if rank == 0:
        facts = {
            "contender": options.contender,
            "median_s": statistics.median(times[options.warm_up :]),
            "all_s": [round(t, 4) for t in times],
            "link_bytes": (counts[-1] - counts[options.warm_up]) / options.iterations,
            "processor_s": [(after - before) / options.iterations for before, after in zip(*used, strict=True)],
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        if isinstance(contender, Ours):
            facts["predicted_s"] = contender.plan.iteration_s
            facts["dense_bytes"] = sum(
                parameter.nbytes for parameter in contender.net.parameters() if parameter.requires_grad
            )
            facts["bytes_sent"] = sum(unit.bytes_sent for unit in contender.plan.units)
        print(json.dumps(facts), flush=True)
    os._exit(0)  # a process with one of DDP's communication hooks does not end by itself


if __name__ == "__main__":
    main()
