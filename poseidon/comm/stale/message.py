"""Message: what workers and servers of tables tell each other.

    DELTA     worker → server   an update, or some of one, of a part: `clock` is the one it belongs to, `ends` says that
                                all of that clock's update is there now, `number` counts a worker's deltas of the
                                part; for a rule that does not just add it is the solver's iteration
    VALUES    server → worker   a part's values of version `clock`; of the receiver's own deltas `number` are in
    READ      worker → server   send values of version `clock` or later; `form` ROWS: of the rows in the payload
    CREATE    worker → server   a table is to be served: its spec, and what becomes of updates, as JSON; to ranks that
                                only serve. SEEDs follow, from the same worker, unless it `ends` at once
    LEAVE     worker → server   no further updates of any part of the table
    LEFT      server → worker   the answer: nothing of the table comes after this
    GOODBYE   worker → all      nothing comes from this worker, and it expects nothing but others' goodbyes
    SEED      worker → server   what a part starts from: `number` 0 values, 1, 2 … the rule's histories; `clock` the
                                version that is; `ends`: the last one
    RECALL    worker → server   asks for one of these
    RECALLED  server → worker   the answer

    form      how the payload is to be read: `rows` of a part, `width` elements each
      DENSE     all rows, in order
      ROWS      `count` row numbers (int32, counted from the part's first row), then these rows
      FACTORS   `count` rows of a (count × rows of the part), then of b (count × width): the update is aᵀ b
      PAIRS     `count` places (int64, row · width + column), then the elements there; all others are 0
      HALF      as ROWS, the rows in float16
      NOTHING   an update of zeros, or no values but the news of a version

A message is a head of fixed size and a payload. One that is longer than a letter may be travels as several fragments,
which other messages may overtake (`mailbox.py`).
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, field

import torch
from torch import Tensor

from poseidon.errors import TransportError

_HEAD = struct.Struct("<BBBxIIIqqd")  # kind, form, ends, table, part, count, clock, number, rate
HEAD_BYTES = _HEAD.size


class Kind(enum.IntEnum):
    DELTA = 1
    VALUES = 2
    READ = 3
    LEAVE = 4
    SEED = 5
    RECALL = 6
    RECALLED = 7
    CREATE = 8
    LEFT = 9
    GOODBYE = 10


FROM_SERVERS = frozenset({Kind.VALUES, Kind.RECALLED, Kind.LEFT})


class Form(enum.IntEnum):
    NOTHING = 0
    DENSE = 1
    ROWS = 2
    FACTORS = 3
    PAIRS = 4
    HALF = 5


_NO_BYTES = torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class Message:
    """`payload`: bytes, which nobody writes to any more. `rate`: the learning rate of an update, where it has one."""

    kind: Kind
    table: int
    part: int = 0
    clock: int = 0
    number: int = 0
    form: Form = Form.NOTHING
    count: int = 0
    ends: bool = False
    rate: float = 0.0
    payload: Tensor = field(default=_NO_BYTES, repr=False)

    @property
    def num_bytes(self) -> int:
        return HEAD_BYTES + len(self.payload)

    def head(self) -> bytes:
        return _HEAD.pack(
            self.kind, self.form, self.ends, self.table, self.part, self.count, self.clock, self.number, self.rate
        )


def read_message(data: Tensor) -> Message:
    """A message from its bytes; the payload is a view of them."""
    if len(data) < HEAD_BYTES:
        raise TransportError(f"a message has a head of {HEAD_BYTES} bytes, got {len(data)} in all")
    kind, form, ends, table, part, count, clock, number, rate = _HEAD.unpack(data[:HEAD_BYTES].numpy().tobytes())
    try:
        return Message(Kind(kind), table, part, clock, number, Form(form), count, bool(ends), rate, data[HEAD_BYTES:])
    except ValueError as error:
        raise TransportError(f"a message of a kind or form that is not known: {error}") from error


def as_bytes(tensor: Tensor) -> Tensor:
    """A tensor's elements as they lie in memory, as bytes; a copy only if they do not lie in one piece."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
