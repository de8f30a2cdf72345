"""
The thread that processes thousands of objects while the event loop serves leases, takeovers and requests.

Rules: there is only one such thread, so that only it competes with the loop for the interpreter, and the loop's own
pool stays free for requests. Its arguments do not change meanwhile, or they belong to the caller that waits for it.
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
    """Call *function* in the object thread with the caller's context, and return its result."""
    call = partial(copy_context().run, function, *args, **named)
    return await asyncio.get_running_loop().run_in_executor(_THREAD, call)
