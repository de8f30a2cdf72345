"""
The console next to the cluster of `orderlymq up --console`: a process that ends with the command.

Rule: the console is another distribution. This package imports nothing of it; it finds and starts the console by its
name.
"""

import asyncio
import contextlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Final

from orderlymq.connection.administrator import DATA_DIRECTORY_VARIABLE
from orderlymq_operator.local.directory import DataDirectory

_MODULE: Final = "orderlymq_console"
_END_TIMEOUT_S: Final = 5.0


def is_installed() -> bool:
    """Return whether the console is installed."""
    return importlib.util.find_spec(_MODULE) is not None


@contextlib.asynccontextmanager
async def console_beside(
    directory: DataDirectory, name_servers: Sequence[str]
) -> AsyncIterator[None]:
    """Run the console while the block runs; the console prints its own address, or why it cannot start."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        _MODULE,
        "--name-server",
        ";".join(name_servers),
        # The pipe closes when this process ends, even after a crash, and then the console ends.
        "--end-with-input",
        stdin=asyncio.subprocess.PIPE,
        # The directory where it finds the key with which administrators of this cluster sign.
        env={**os.environ, DATA_DIRECTORY_VARIABLE: str(directory.path)},
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
