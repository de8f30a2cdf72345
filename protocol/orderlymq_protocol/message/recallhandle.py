"""
The handle with which a sender takes a timer message back; it comes from the answer to the send.

The form is RocketMQ's (from 5.3.1 on): `v1 topic broker time id` in base64 for URLs. A client reads the
broker's name from it, so that the request goes to the broker that has the message.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Final, Self

from orderlymq_protocol.integers import read_integer

_VERSION: Final = "v1"
_PARTS: Final = 5
# Topic, broker name and id are short; a longer text is not a handle and is not decoded.
_LENGTH_MAX: Final = 1_024


class InvalidHandle(ValueError):  # noqa: N818 - as InvalidName: it says what the thing is
    """The text is not a handle."""


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """The message that is meant; *due_ms* is the wall time at which it is delivered."""

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str

    def encode(self) -> str:
        """Return the text that clients keep."""
        parts = (_VERSION, self.topic, self.broker_name, str(self.due_ms), self.unique_key)

        return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> Self:
        """Parse a handle.

        Raises:
            InvalidHandle: the text is not a handle; the error has RocketMQ's words.
        """
        try:
            if len(text) > _LENGTH_MAX:
                raise ValueError(text[:20])
            # Java's decoder accepts a text without the padding that its encoder writes.
            padded = text + "=" * (-len(text) % 4)
            decoded = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
            # A program chooses its unique keys, and some contain blanks.
            parts = decoded.split(" ", _PARTS - 1)
            if len(parts) < _PARTS or parts[0] != _VERSION:
                raise ValueError(parts[0])
            return cls(parts[1], parts[2], read_integer(parts[3]), parts[4])
        except (ValueError, binascii.Error) as error:
            raise InvalidHandle("recall handle is invalid") from error
