"""Forms of updates: what is added to some rows is what would be added to all of them."""

from __future__ import annotations

import pytest
import torch

from poseidon.comm.stale.forms import ChosenRows, factors_payload, pairs_payload, rows_payload
from poseidon.comm.stale.message import Form, Kind, Message, as_bytes

NUM_ROWS, WIDTH = 7, 3


def updates(seed: int) -> dict[Form, tuple[Message, torch.Tensor]]:
    """Of every form one, with the dense matrix that it stands for."""
    draw = torch.Generator().manual_seed(seed)

    def message(form: Form, count: int, payload: torch.Tensor) -> Message:
        return Message(Kind.DELTA, 0, form=form, count=count, payload=payload)

    dense = torch.randn(NUM_ROWS, WIDTH, generator=draw, dtype=torch.float64)
    numbers = torch.randperm(NUM_ROWS, generator=draw)[:4]
    some = torch.zeros_like(dense)
    some[numbers] = dense[numbers]
    narrow = some.half().double()
    places = torch.tensor([1, 5, 17])
    pairs = torch.zeros_like(dense)
    pairs.view(-1)[places] = dense.view(-1)[places]
    a, b = torch.randn(2, NUM_ROWS, generator=draw, dtype=torch.float64), dense[:2]
    return {
        Form.NOTHING: (message(Form.NOTHING, 0, torch.empty(0, dtype=torch.uint8)), torch.zeros_like(dense)),
        Form.DENSE: (message(Form.DENSE, 0, as_bytes(dense)), dense),
        Form.ROWS: (message(Form.ROWS, 4, rows_payload(numbers, dense[numbers])), some),
        Form.HALF: (message(Form.HALF, 4, rows_payload(numbers, dense[numbers].half())), narrow),
        Form.PAIRS: (message(Form.PAIRS, 3, pairs_payload(places, pairs.view(-1)[places])), pairs),
        Form.FACTORS: (message(Form.FACTORS, 2, factors_payload(a, b)), torch.einsum("kr,kw->rw", a, b)),
    }


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("numbers", [[4, 0, 6], [2], [], list(range(NUM_ROWS))])
def test_chosen_rows_get_what_is_theirs(form, numbers):
    for seed in range(5):
        message, dense = updates(seed)[form]
        rows = torch.ones(len(numbers), WIDTH, dtype=torch.float64)
        ChosenRows(torch.tensor(numbers, dtype=torch.int32), rows, NUM_ROWS).add(message)
        torch.testing.assert_close(rows, 1 + dense[torch.tensor(numbers, dtype=torch.int64)], rtol=1e-14, atol=1e-14)
