"""Commands end when nobody reads their output any more, as with `| head`."""

import asyncio
import os
import sys

import pytest

from orderlymq_protocol.codes import RequestCode
from tests.client.fakecluster import FakeCluster, running

# Each test starts and ends a whole Python process.
PATIENCE_S = 50
# Buffered output is written at the end of the process, where no command can report an error.
BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}
pytestmark = pytest.mark.timeout(PATIENCE_S + 30)


async def into_a_closed_pipe(cluster: FakeCluster, *arguments: str) -> tuple[int | None, str]:
    """Return exit code and stderr of a command whose output has no reader."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "orderlymq", *arguments, "--name-server", cluster.address),
            stdout=writing,
            stderr=asyncio.subprocess.PIPE,
            env=BUFFERED,
        )
    finally:
        os.close(writing)
    _, said = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    return process.returncode, said.decode()


@pytest.mark.parametrize("how", [[], ["--ordered"]])
async def test_what_nobody_could_read_is_neither_consumed_nor_failed(how: list[str]) -> None:
    """Law: messages that could not be printed are neither committed nor failed; the command ends."""
    async with running(topics={"T": 1}) as cluster:
        for number in range(3):
            cluster.append("T", 0, b"%d" % number)

        code, said = await into_a_closed_pipe(
            cluster, "consume", "T", "--group", "G", "--from", "earliest", *how
        )

        assert (code, "Traceback" in said) == (1, False), said
        assert cluster.offsets.get(("G", "T", 0), 0) == 0
        assert RequestCode.CONSUMER_SEND_MSG_BACK not in cluster.codes()


@pytest.mark.parametrize(
    "arguments",
    [
        ["tail", "T", "--follow"],
        ["tail", "T", "--no-follow"],
        ["topic", "list", "--json"],
        ["status"],
    ],
)
async def test_a_command_without_a_reader_ends_with_a_code(arguments: list[str]) -> None:
    """Law: a command without a reader ends with a code, no traceback and no endless work."""
    async with running(topics={"T": 1}) as cluster:
        cluster.append("T", 0, b"one")

        code, said = await into_a_closed_pipe(cluster, *arguments)

        assert (code, "Traceback" in said) == (1, False), said
