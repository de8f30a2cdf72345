"""
A stranger at the port where replicas speak: greetings, raft messages and frames that no replica sends.

The messages come from the union in `orderlymq_raft.messages`, the kinds of frames from `FrameKind`; the stranger
knows what `/status` shows publicly. Laws: no process ends, and without the secret of the cluster the stranger's
messages are ignored. With the secret it is a replica that lies, which may depose the leader.
"""

import contextlib
import random
import socket
import typing
from dataclasses import fields
from typing import Any, Final

import msgspec

from orderlymq_broker.replication.transport.frameheaders import (
    NONCE_SIZE,
    CallerProof,
    Challenge,
    Hello,
    Purpose,
)
from orderlymq_broker.replication.transport.frames import (
    WIRE_VERSION,
    FrameKind,
    FrameReader,
    decode_header,
    encode_frame,
    encode_messages,
)
from orderlymq_broker.replication.transport.handshake import proof
from orderlymq_raft.messages import Append, InstallSnapshot, Message
from orderlymq_raft.types import Entry, EntryKind, Index, Term
from tests.hostile import values
from tests.hostile.shapes import BROKER, CLUSTER

# A snapshot is not sent among other messages: it has its own connection.
MESSAGES: Final[tuple[type[Any], ...]] = tuple(
    kind for kind in typing.get_args(Message) if kind is not InstallSnapshot
)
_NODES: Final = (1, 2, 3, 999, 0, -1)
_TERMS: Final = (0, 1, 2, 3, 50, 2**31, 2**62, 2**63)
_SMALL: Final = (0, 1, 2, 7, 1_000, 2**40, 2**63)
_PREFIX_MAX: Final = 2**32


class Stranger:
    """Makes what a stranger sends to node *target* of a broker group, from a seed and a number.

    Attributes:
        proves: whether it waits for the challenge and answers it, with *key* or with a made-up key.
    """

    def __init__(
        self, seed: int, number: int, target: int, term: int, key: bytes | None = None
    ) -> None:
        self._rng = random.Random((seed << 40) + number)
        self._target = target
        self._term = term
        self._key = key or self._rng.randbytes(32)
        self.proves = key is not None or self._rng.random() < 0.5
        self._hello = self._plain_greeting()

    def greeting(self) -> bytes:
        """Return the first frame, which may be spoiled if the stranger proves nothing."""
        if self.proves:
            return b"".join(encode_frame(FrameKind.HELLO, self._hello))
        return self._greeting()

    def proof(self, nonce: bytes) -> bytes:
        """Return the answer to a challenge."""
        own = proof(self._key, "caller", self._hello, nonce, is_recovering=False)
        return b"".join(encode_frame(FrameKind.PROOF, CallerProof(own)))

    def frames(self) -> bytes:
        """Return the frames that follow."""
        found = b"".join(self._frame() for _ in range(self._rng.choice((1, 1, 2, 5))))
        if self._rng.random() < 0.1:
            found = found[: self._rng.randrange(len(found))]
        return found

    def _plain_greeting(self) -> Hello:
        rng = self._rng
        purposes: tuple[Purpose, ...] = ("raft", "raft", "raft", "clients", "snapshot")
        purpose = rng.choice(purposes)
        sender = rng.choice((1, 2, 3, 999))
        nonce = rng.randbytes(NONCE_SIZE)
        return Hello(
            *(WIRE_VERSION, CLUSTER, BROKER, sender, self._target, purpose, "127.0.0.1", 1),
            *(rng.random() < 0.1, nonce),
        )

    def _greeting(self) -> bytes:
        rng = self._rng
        purpose = rng.choice(("raft", "raft", "clients", "snapshot", "", "x" * 70_000))
        header = [*msgspec.structs.astuple(self._hello)]
        header[3] = rng.choice(_NODES)
        header[5] = purpose
        if rng.random() < 0.85:
            return b"".join(encode_frame(FrameKind.HELLO, header))
        header[rng.randrange(len(header))] = self._value()
        return b"".join(encode_frame(FrameKind.HELLO, header))

    def _frame(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.7:
            return self._messages()
        kind = rng.choice(tuple(FrameKind))
        header = [self._value() for _ in range(rng.choice((0, 1, 3, 6)))]
        found = b"".join(encode_frame(kind, header, [rng.randbytes(rng.randrange(64))]))
        if rng.random() < 0.3:
            return (values.number(rng) % _PREFIX_MAX).to_bytes(4, "big") + found[4:]
        return found

    def _messages(self) -> bytes:
        rng = self._rng
        whole = b"".join(encode_messages([self._message() for _ in range(rng.choice((1, 1, 3)))]))
        if rng.random() < 0.5:
            return whole
        (frame,) = FrameReader().receive_data(whole)
        header = msgspec.msgpack.decode(frame.header)
        for message in header:
            at = rng.randrange(len(message))
            nested = message[at]
            if isinstance(nested, list) and nested and rng.random() < 0.7:
                nested[rng.randrange(len(nested))] = self._value()
            else:
                message[at] = self._value()
        return b"".join(encode_frame(FrameKind.RAFT, header, [frame.payload]))

    def _message(self) -> Any:
        rng = self._rng
        kind = rng.choice(MESSAGES)
        given: dict[str, Any] = {}
        for field in fields(kind):
            match field.name:
                case "sender":
                    given[field.name] = rng.choice(_NODES)
                case "target":
                    given[field.name] = rng.choice((self._target, self._target, rng.choice(_NODES)))
                case "term" | "last_term" | "prev_term":
                    given[field.name] = rng.choice((self._term, self._term, rng.choice(_TERMS)))
                case "granted" | "reject" | "transfer" | "recovering":
                    given[field.name] = rng.random() < 0.5
                case "entries":
                    continue
                case _:
                    given[field.name] = rng.choice(_SMALL)
        if kind is Append:
            given["entries"] = self._entries(given["prev_index"])
        return kind(**given)

    def _entries(self, after: int) -> tuple[Entry, ...]:
        rng = self._rng
        return tuple(
            Entry(
                Term(rng.choice((self._term, rng.choice(_TERMS)))),
                Index(rng.choice((after + 1 + number, rng.choice(_SMALL)))),
                rng.choice((b"", b"x", rng.randbytes(40))),
                rng.choice(tuple(EntryKind)),
            )
            for number in range(rng.choice((0, 1, 2)))
        )

    def _value(self) -> Any:
        found = values.value(self._rng)
        # msgpack holds at most 64 bits and no lone surrogates.
        if isinstance(found, str):
            return found.encode(errors="replace").decode()
        if type(found) is int and not -(2**63) <= found < 2**64:
            return 2**63
        return found


def send(port: int, stranger: Stranger) -> None:
    """Send the frames of *stranger* and hang up; a refusal is as good as an answer."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5.0) as raw:
        raw.sendall(stranger.greeting())
        if stranger.proves:
            frames = FrameReader().receive_data(raw.recv(4_096))
            if not frames or frames[0].kind is not FrameKind.CHALLENGE:
                return
            raw.sendall(stranger.proof(decode_header(frames[0], Challenge).nonce))
        raw.sendall(stranger.frames())
        raw.settimeout(0.02)
        raw.recv(4_096)
