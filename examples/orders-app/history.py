"""
A history of the events in many pods, in the form that `orderlymq verify` checks.

`history.py serve FILE` listens on port 9000, writes every line that it receives to FILE, and then answers with one byte.
A connection that ends without a goodbye belongs to a process that died. This is recorded, too, because a dead consumer
no longer works on its message. Times are those of the sender's monotonic clock, which all pods must share, as on the
nodes of kind.
"""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Self

PORT = 9000
_GOODBYE = "goodbye"


class History:
    """Reports events to a server; an event is recorded when `record` returns."""

    def __init__(self, address: str, process: str) -> None:
        self._address = address
        self._process = process
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.record(_GOODBYE, client=self._process)

    async def record(self, kind: str, **facts: str | int) -> None:
        """Record one event that happens now; wait for the server as long as it takes."""
        if not self._address:
            return
        event = {"at": time.monotonic_ns(), "kind": kind, "process": self._process, **facts}
        line = json.dumps(event).encode() + b"\n"
        async with self._turn:
            while True:
                try:
                    reader, writer = self._streams or await self._connect()
                    writer.write(line)
                    await reader.readexactly(1)
                    return
                except (OSError, asyncio.IncompleteReadError):
                    self._streams = None
                    await asyncio.sleep(0.2)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self._address.rpartition(":")
        self._streams = await asyncio.open_connection(host, int(port))
        return self._streams


async def serve(path: Path) -> None:
    """Write events until SIGTERM or SIGINT; every answered event is in the file."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, os._exit, 0)
    with path.open("ab", buffering=0) as file:

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            process = ""
            try:
                while line := await reader.readline():
                    event: dict[str, Any] = json.loads(line)
                    process = event["process"]
                    if event["kind"] == _GOODBYE:
                        process = ""
                        file.write(_gone(event["client"], "ended"))
                    else:
                        file.write(line)
                    writer.write(b"\n")
            except ConnectionError:
                pass
            finally:
                if process:
                    file.write(_gone(process, "died"))
                writer.close()

        server = await asyncio.start_server(talk, port=PORT)
        async with server:
            await server.serve_forever()


def _gone(client: str, detail: str) -> bytes:
    event = {"at": time.monotonic_ns(), "kind": "gone", "client": client, "detail": detail}
    return json.dumps(event).encode() + b"\n"


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[2])))
