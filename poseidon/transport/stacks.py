"""What the threads of this process do just now: where each of them stands, innermost call last."""

from __future__ import annotations

import sys
import threading
import traceback

MAX_CHARS = 60_000


def all_stacks() -> str:
    """The stacks of all threads, the main thread's first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda entry: entry[0] != main)
    texts = (f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames)
    return "\n".join(texts)[:MAX_CHARS]
