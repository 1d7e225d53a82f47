"""Prefetching: order, bounds, errors and endings, whatever the threads do."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from poseidon.data.batch import BatchMemory
from poseidon.data.prefetch import Prefetch, default_num_threads


def test_results_come_in_order_though_made_out_of_order():
    later_done = threading.Event()

    def make(k: int) -> int:
        if k == 0:
            assert later_done.wait(60)
        if k == 2:
            later_done.set()
        return k

    prefetch = Prefetch(make, depth=3, num_threads=3)
    assert [prefetch.take() for _ in range(10)] == list(range(10))
    prefetch.close()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_never_more_than_depth_ahead(num_threads):
    begun: list[int] = []
    prefetch = Prefetch(lambda k: begun.append(k) or k, depth=4, num_threads=num_threads)
    for taken in range(1, 20):
        assert prefetch.take() == taken - 1
        assert max(begun) < taken + 4
    prefetch.close()
    assert sorted(begun) == list(range(len(begun)))


def test_an_error_comes_when_its_turn_comes():
    def make(k: int) -> int:
        if k == 2:
            raise ValueError("record 2 is bad")
        return k

    prefetch = Prefetch(make, depth=4, num_threads=2)
    assert [prefetch.take(), prefetch.take()] == [0, 1]
    with pytest.raises(ValueError, match="record 2 is bad"):
        prefetch.take()
    prefetch.close()


def test_close_waits_for_what_is_begun_and_drops_the_rest():
    begun, go_on = threading.Event(), threading.Event()
    made: list[int] = []

    def make(k: int) -> None:
        begun.set()
        assert go_on.wait(60)
        made.append(k)

    prefetch = Prefetch(make, depth=4, num_threads=1)
    assert begun.wait(60)
    threading.Timer(0.01, go_on.set).start()
    prefetch.close()
    assert made == [0]


def test_the_program_ends_though_nobody_closes():
    code = (
        "from poseidon.data.prefetch import Prefetch\n"
        "prefetch = Prefetch(lambda k: k, depth=4, num_threads=2)\n"
        "print(prefetch.take())\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout == "0\n"
    assert told.stderr == ""


def test_threads_end_with_the_prefetch():
    prefetch = Prefetch(lambda k: k, depth=2, num_threads=2)
    prefetch.take()
    prefetch.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_number_of_threads():
    assert default_num_threads(1) == 1
    assert 1 <= default_num_threads(64) <= 64


class TestBatchMemory:
    def test_memory_comes_back_when_the_last_tensor_is_gone(self):
        memory = BatchMemory(torch.float32)
        tensor = torch.from_numpy(memory.take((2, 3)))
        address = tensor.data_ptr()
        view = tensor[1].view(3)
        del tensor
        other = memory.take((2, 3))
        assert other.ctypes.data != address
        del view
        assert memory.take((2, 3)).ctypes.data == address

    def test_a_tensor_that_is_kept_is_never_overwritten(self):
        memory = BatchMemory(torch.float32)
        kept = []
        for k in range(20):
            array = memory.take((4, 5))
            array[...] = k
            tensor = torch.from_numpy(array)
            del array
            if k % 3 == 0:
                kept.append((k, tensor))
        for k, tensor in kept:
            assert (tensor == k).all()

    def test_a_tensor_that_autograd_keeps_is_not_reused(self):
        memory = BatchMemory(torch.float32)
        weight = torch.ones(3, requires_grad=True)
        array = memory.take((3,))
        array[...] = [1, 2, 3]
        data = torch.from_numpy(array)
        del array
        loss = (weight * data).sum()
        del data
        memory.take((3,))[...] = 100
        loss.backward()
        assert weight.grad is not None
        assert weight.grad.tolist() == [1, 2, 3]

    def test_smaller_batches_use_the_same_memory(self):
        memory = BatchMemory(torch.float64)
        address = memory.take((4, 5)).ctypes.data
        array = memory.take((2, 7))
        assert array.ctypes.data == address
        assert array.shape == (2, 7)
        assert array.dtype == np.float64
        assert memory.take((10, 10)).shape == (10, 10)
