"""The demo's processes notice the end of the process that started them."""

import subprocess
import sys

_PROGRAM = """
import asyncio
from orderlymq_operator.demo.reports import call_at_end_of_input

async def main():
    over = asyncio.Event()
    call_at_end_of_input(over.set)
    print("up", flush=True)
    await over.wait()
    print("over", flush=True)

asyncio.run(main())
"""


def test_a_process_ends_with_who_started_it() -> None:
    """Law: a process ends with its starter, however that ended; else it would consume others' messages."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert process.poll() is None

        process.stdin.close()

        assert process.stdout.read() == "over\n"
