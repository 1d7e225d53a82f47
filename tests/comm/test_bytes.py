"""What really leaves a worker in an iteration, against the formulas of the design's table of schemes, to the byte.

P workers, an M × N weight with a bias, K rows of factors per worker, e bytes per element, w on the wire.

    RING             2·w·elems·(P−1)/P                                           by the engine's own count, rounded down
    SERVER           2·w·elems·(P−1)/P                                           on average over workers: shards differ
    FACTORS          e·K·(M+N)·(P−1)
    FACTOR_SERVER    e·(P−1)·(K·S + K·L/P) + w·(M·N + bias)·(P−1)/P               bias: where outputs are sliced
    ROWS             (P−1)·r·(e·N+4), and 8 for the number of rows; r: as many as there were before, or more
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from poseidon.plan import Scheme
from poseidon.transport.cutting import DIRECT_BYTES
from tests.comm.nets import WORDS, Case
from tests.comm.training import bytes_of_an_iteration, bytes_of_rows, plain_request, plan_of

WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class Sizes:
    outputs: int
    inputs: int
    batch: int
    transposed: bool = False

    @property
    def larger(self) -> int:
        return max(self.outputs, self.inputs)

    @property
    def smaller(self) -> int:
        return min(self.outputs, self.inputs)

    @property
    def weight(self) -> int:
        return self.outputs * self.inputs

    def case(self) -> Case:
        transpose = "transpose: true" if self.transposed else ""
        return Case(
            f"{self.outputs}x{self.inputs}",
            lambda n: (
                f"""
                layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: {n} dim: {self.inputs} }} }} }}
                layer {{ name: "fc" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {{
                         num_output: {self.outputs} weight_filler {{ type: "xavier" }} {transpose} }} }}
                layer {{ name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1
                         reduction_param {{ operation: SUMSQ }} }}"""
            ),
            lambda rng, n: {"x": rng.standard_normal((n, self.inputs))},
            batch=self.batch,
        )


SIZES = (
    Sizes(7, 5, 3),
    Sizes(4, 11, 2),
    Sizes(1, 3, 1),
    Sizes(6, 6, 2, transposed=True),
    Sizes(3, 13, 5, transposed=True),
)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_ring(sizes, size):
    elems = sizes.weight + sizes.outputs
    sent = bytes_of_an_iteration(sizes.case(), plain_request(scheme=Scheme.RING), size)
    assert sent == [2 * 4 * elems * (size - 1) // size] * size


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_narrow_ring_halves_them(sizes, size, wire):
    elems = sizes.weight + sizes.outputs
    sent = bytes_of_an_iteration(sizes.case(), plain_request(scheme=Scheme.RING, wire=wire), size)
    assert sum(sent) == 2 * WIDTHS[wire] * elems * (size - 1)


@pytest.mark.parametrize("wire", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_server(sizes, size, wire):
    elems = sizes.weight + sizes.outputs
    sent = bytes_of_an_iteration(sizes.case(), plain_request(scheme=Scheme.SERVER, wire=wire), size)
    assert sum(sent) == 2 * WIDTHS[wire] * elems * (size - 1)
    shards = [elems // size + (rank < elems % size) for rank in range(size)]
    assert sent == [WIDTHS[wire] * (elems - shard + (size - 1) * shard) for shard in shards]


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_factors_always_travel_in_full_width(sizes, size, wire):
    sent = bytes_of_an_iteration(sizes.case(), plain_request(scheme=Scheme.FACTORS, wire=wire), size)
    assert sent == [4 * sizes.batch * (sizes.outputs + sizes.inputs) * (size - 1)] * size


@pytest.mark.parametrize("wire", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_factor_server(sizes, size, wire):
    sent = bytes_of_an_iteration(sizes.case(), plain_request(scheme=Scheme.FACTOR_SERVER, wire=wire), size)
    bias = sizes.outputs if sizes.outputs >= sizes.inputs else 0
    factors = 4 * sizes.batch * (size * sizes.smaller + sizes.larger)  # P times what one worker sends to one other
    assert sum(sent) == (size - 1) * (factors + WIDTHS[wire] * (sizes.weight + bias))


@pytest.mark.parametrize("size", [2, 3])
def test_factor_server_in_pieces_sends_the_whole_factor_once(size):
    sizes = Sizes(12, 5, 2)
    requests = [plain_request(scheme=Scheme.FACTOR_SERVER, chunk_bytes=(chunk,)) for chunk in (1e9, 60.0)]
    plans = [plan_of(sizes.case(), size, request) for request in requests]
    assert [len(plan.order) > 1 for plan in plans] == [False, True]
    whole, pieces = (sum(bytes_of_an_iteration(sizes.case(), request, size)) for request in requests)
    assert whole == pieces


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_rows(size):
    sent = bytes_of_an_iteration(WORDS, plain_request(scheme=Scheme.ROWS), size)
    plan = plan_of(WORDS, size, plain_request(scheme=Scheme.ROWS))
    dense = sum(2 * 4 * unit.num_elems * (size - 1) // size for unit in plan.units if unit.scheme is Scheme.RING)
    for rank, found in enumerate(sent):
        touched = [len(np.unique(WORDS.share_of(i, rank, size)["word"].numpy())) for i in range(3)]
        assert found - dense == (size - 1) * bytes_of_rows(touched, 4)


@pytest.mark.parametrize("scheme", [Scheme.RING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER])
@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_what_is_too_large_to_go_straight_goes_around_a_ring_and_costs_the_same(scheme, wire):
    """…and the plan predicts it: a bias sent along is all that differs."""
    sizes, size = Sizes(200, 400, 40), 3
    assert 4 * sizes.weight / size > DIRECT_BYTES
    assert 4 * sizes.batch * sizes.larger > DIRECT_BYTES
    request = plain_request(scheme=scheme, wire=wire)
    sent = bytes_of_an_iteration(sizes.case(), request, size)
    predicted = plan_of(sizes.case(), size, request, torch.float32).bytes_sent
    assert predicted <= max(sent) <= predicted + 2 * 4 * sizes.outputs
    assert sum(sent) / size == pytest.approx(predicted, abs=4 * sizes.outputs)
