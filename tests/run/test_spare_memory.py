import ctypes
from pathlib import Path

import pytest

from poseidon.run.spare_memory import give_back

BLOCK, NUM_BLOCKS = 100_000, 1_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has nothing to give back")
def test_holes_between_blocks_in_use_go_back_to_the_system() -> None:
    blocks = [bytearray(b"x") * BLOCK for _ in range(NUM_BLOCKS)]
    last = blocks[-1]  # at the top of the heap: nothing below it goes back by itself
    del blocks[:-1:2], blocks[:-1:3]
    before = resident_bytes()
    give_back()
    assert before - resident_bytes() > BLOCK * NUM_BLOCKS / 2
    assert last == b"x" * BLOCK
