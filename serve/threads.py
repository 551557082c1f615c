"""Threads that read grammars."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

# llguidance descends into rules and references of rules and references, which a chain of the
# longest form has some thousand of, with about 10 kB of the stack for each. The memory is taken
# only as it is used.
_STACK_BYTES = 256 * 2**20


def grammar_thread(name: str) -> ThreadPoolExecutor:
    """One thread, in whose stack the deepest grammar has room that a form can be."""
    executor = ThreadPoolExecutor(1, name)
    before = threading.stack_size(_STACK_BYTES)
    try:
        executor.submit(int).result()  # the thread begins with its first task
    finally:
        threading.stack_size(before)
    return executor
