"""Forms: how updates and values are written into a message's payload, and read again (`message.py` says how they look).

All functions see a part as `rows × width` elements of the table's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from poseidon.comm.stale.message import Form, Message, as_bytes
from poseidon.errors import TransportError

Product = Callable[[Tensor, Tensor], Tensor]


def outer(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ b."""
    return a.t() @ b


# -- writing ----------------------------------------------------------------------------------------------------------
def rows_payload(numbers: Tensor, rows: Tensor) -> Tensor:
    return torch.cat((as_bytes(numbers.to(torch.int32)), as_bytes(rows)))


def pairs_payload(places: Tensor, elements: Tensor) -> Tensor:
    return torch.cat((as_bytes(places.to(torch.int64)), as_bytes(elements)))


def factors_payload(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat((as_bytes(a), as_bytes(b)))


# -- reading ----------------------------------------------------------------------------------------------------------
def dense_of(message: Message, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    return _typed(message.payload, dtype, shape[0] * shape[1], message).view(shape)


def rows_of(message: Message, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Row numbers and rows."""
    split = 4 * message.count
    wire = torch.float16 if message.form is Form.HALF else dtype
    rows = _typed(message.payload[split:], wire, message.count * width, message)
    return _typed(message.payload[:split], torch.int32, message.count, message), rows.view(-1, width).to(dtype)


def factors_of(message: Message, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rows, width = shape
    both = _typed(message.payload, dtype, message.count * (rows + width), message)
    a, b = both.split((message.count * rows, message.count * width))
    return a.view(message.count, rows), b.view(message.count, width)


def add_update(total: Tensor, message: Message, scale: float = 1.0) -> None:
    """total += the message's update, scaled."""
    shape, dtype = (total.shape[0], total.shape[1]), total.dtype
    if message.form is Form.DENSE:
        total.add_(dense_of(message, shape, dtype), alpha=scale)
    elif message.form in (Form.ROWS, Form.HALF):
        numbers, rows = rows_of(message, shape[1], dtype)
        total.index_add_(0, numbers, rows, alpha=scale)
    elif message.form is Form.PAIRS:
        split = 8 * message.count
        places = _typed(message.payload[:split], torch.int64, message.count, message)
        elements = _typed(message.payload[split:], dtype, message.count, message)
        total.view(-1).index_add_(0, places, elements, alpha=scale)
    elif message.form is Form.FACTORS:
        total.add_(outer(*factors_of(message, shape, dtype)), alpha=scale)


class ChosenRows:
    """Some rows of a part, to which updates are added as far as they are for these."""

    def __init__(self, numbers: Tensor, rows: Tensor, num_rows: int) -> None:
        self._numbers, self._rows = numbers.long(), rows
        self._places = torch.full((num_rows,), -1)
        self._places[self._numbers] = torch.arange(len(self._numbers))

    def add(self, message: Message) -> None:
        """Costs what the message's rows and these have in common, where it has rows."""
        width, dtype = self._rows.shape[1], self._rows.dtype
        if message.form in (Form.ROWS, Form.HALF):
            numbers, delta = rows_of(message, width, dtype)
            places = self._places[numbers.long()]
            common = (places >= 0).nonzero()[:, 0]
            if len(common):
                self._rows.index_add_(0, places[common], delta[common])
        elif message.form is not Form.NOTHING:
            total = torch.zeros(len(self._places), width, dtype=dtype)
            add_update(total, message)
            self._rows += total[self._numbers]


def sum_updates(updates: Sequence[Message], shape: tuple[int, int], dtype: torch.dtype, product: Product) -> Tensor:
    """The sum of updates, in the order given, in memory of its own."""
    if updates and all(update.form is Form.FACTORS for update in updates):
        factors = [factors_of(update, shape, dtype) for update in updates]
        return product(torch.cat([a for a, _ in factors]), torch.cat([b for _, b in factors]))
    if updates and updates[0].form is Form.DENSE:
        total = dense_of(updates[0], shape, dtype).clone()
        updates = updates[1:]
    else:
        total = torch.zeros(shape, dtype=dtype)
    for update in updates:
        add_update(total, update)
    return total


def _typed(payload: Tensor, dtype: torch.dtype, num_elems: int, message: Message) -> Tensor:
    if len(payload) != num_elems * dtype.itemsize:
        raise TransportError(
            f"{message} should carry {num_elems} elements of {dtype} there, got {len(payload)} bytes; do all workers "
            "run the same version?"
        )
    if payload.storage_offset() % dtype.itemsize:  # behind other things it may lie at an odd place
        payload = payload.clone()
    return payload.view(dtype)
