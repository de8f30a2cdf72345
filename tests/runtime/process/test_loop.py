"""The event loop of a server."""

import sys

from orderlymq_runtime.process import loop


def test_a_thread_need_not_wait_long_for_a_busy_loop() -> None:
    """Law: a busy loop does not delay a thread for long; Python's default of 5 ms would slow each sync of the log."""

    async def main() -> int:
        return round(sys.getswitchinterval() * 1e6)

    before = sys.getswitchinterval()
    try:
        assert loop.run(main()) == 500
    finally:
        sys.setswitchinterval(before)
