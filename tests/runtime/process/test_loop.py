"""The event loop of a server."""

import sys

from orderlymq_runtime.process import loop


def test_a_thread_need_not_wait_long_for_a_busy_loop() -> None:
    """The thread that syncs the log waits for the interpreter twice per sync; Python's 5 ms would be most of a send."""

    async def main() -> int:
        return round(sys.getswitchinterval() * 1e6)

    before = sys.getswitchinterval()
    try:
        assert loop.run(main()) == 500
    finally:
        sys.setswitchinterval(before)
