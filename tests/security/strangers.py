"""
A stranger at the replica port: it knows what `/status` shows to everybody, but not the secret of the cluster.

It speaks the protocol as a replica does, frame by frame, and makes its proof with any key that the test gives it.
"""

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from orderlymq_broker.replication.transport.frameheaders import CallerProof, Challenge, Hello
from orderlymq_broker.replication.transport.frames import (
    WIRE_VERSION,
    Frame,
    FrameKind,
    FrameReader,
    decode_header,
    encode_frame,
)
from orderlymq_broker.replication.transport.handshake import new_nonce, proof
from orderlymq_broker.settings import Address

# Longer than any pause of a busy machine.
PATIENCE_S: Final = 30.0
WRONG_KEY: Final = b"\x01" * 32


@dataclass
class Stranger:
    """A connection of a stranger; a context manager."""

    address: Address
    tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(
            self.address.host,
            self.address.port,
            ssl=self.tls,
            server_hostname="" if self.tls else None,
        )
        self._frames = FrameReader()
        self._read: list[Frame] = []
        self.heard = b""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def say(self, *frames: list[bytes]) -> None:
        """Send all frames in one write."""
        self._writer.write(b"".join(b"".join(frame) for frame in frames))
        with contextlib.suppress(OSError):
            await self._writer.drain()

    async def frame(self) -> Frame | None:
        """Return the next frame; None if the peer has closed the connection."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._read:
                try:
                    data = await self._reader.read(1 << 16)
                except OSError:
                    return None
                if not data:
                    return None
                self.heard += data
                self._read += self._frames.receive_data(data)
        return self._read.pop(0)

    async def answers(self) -> list[FrameKind]:
        """Return the kinds of all frames until the peer closes the connection."""
        found = []
        while (frame := await self.frame()) is not None:
            found.append(frame.kind)
        return found

    async def prove(self, hello: Hello, key: bytes = WRONG_KEY) -> None:
        """Send a greeting, and answer the challenge with a proof made with *key*."""
        await self.say(encode_frame(FrameKind.HELLO, hello))
        frame = await self.frame()
        assert frame is not None
        assert frame.kind is FrameKind.CHALLENGE
        nonce = decode_header(frame, Challenge).nonce
        own = proof(key, "caller", hello, nonce, is_recovering=False)
        await self.say(encode_frame(FrameKind.PROOF, CallerProof(own)))


def greeting(
    target: int,
    sender: int = 2,
    *,
    purpose: Literal["raft", "snapshot"] = "raft",
    cluster: str = "C",
    group: str = "g",
    host: str = "203.0.113.9",
) -> Hello:
    """Return the greeting that node *sender* would send if it had this address."""
    return Hello(
        WIRE_VERSION,
        cluster,
        group,
        sender,
        target,
        purpose,
        host,
        6666,
        False,
        new_nonce(),
    )
