"""
The thread that goes through thousands of objects, while the event loop serves leases, takeovers and requests.

Rules: it is one, so that its work and the loop share the interpreter and nobody else; requests find the threads of the
loop's own pool free. What it is given does not change meanwhile, or belongs to the caller that waits for it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="objects")


async def beside_loop(function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Call *function* in that thread, with the context of the caller, and return what it returns."""
    call = partial(copy_context().run, function, *args, **named)
    return await asyncio.get_running_loop().run_in_executor(_THREAD, call)
