"""Prefetch: results of a function of 0, 1, 2, ..., computed ahead on threads and handed out in that order.

    prefetch = Prefetch(make, depth=4, num_threads=2)
    prefetch.take()      make(0)
    prefetch.take()      make(1)
    prefetch.close()

At most `depth` results are ready or in work. No thread ever waits for the consumer: a task is only submitted when there
is room for its result, so there is nothing to wake, and nothing that could hang, when the program ends. What is handed
out does not depend on timing. An error of make(k) is raised by the (k+1)-th take.

Threads suffice: decoding and converting happen in OpenCV and NumPy, which let other threads run meanwhile.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    def __init__(self, make: Callable[[int], T], depth: int, num_threads: int) -> None:
        self._make = make
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="prefetch")
        self._next = 0
        self._ahead: deque[Future[T]] = deque()
        for _ in range(depth):
            self._submit()

    def take(self) -> T:
        """The next result; waits for it."""
        result = self._ahead.popleft().result()
        self._submit()
        return result

    def close(self) -> None:
        """Drops what is not begun, waits for what is."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._ahead.clear()

    def _submit(self) -> None:
        self._ahead.append(self._executor.submit(self._make, self._next))
        self._next += 1


def default_num_threads(depth: int) -> int:
    """Half the cores this process may use (the net needs the others), but no more than there is work for."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(depth, num_cores // 2))
