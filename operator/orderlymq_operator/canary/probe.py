"""
The body of a probe: its run, queue and number, with a checksum over them. Pure.

Rule: a body that cannot be read, or has another checksum, is not as any canary sends it.
"""

import zlib
from dataclasses import dataclass

import orjson

from orderlymq_operator.canary.troubles import Lane


class AlteredError(ValueError):
    """A message is not as a canary sends it; the text says how it differs."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One message of a canary."""

    run: str
    lane: Lane
    number: int

    def encode(self) -> bytes:
        """Return the body of the message."""
        text = f"{self.run} {self.lane.group} {self.lane.queue} {self.number}"
        return orjson.dumps([text, zlib.crc32(text.encode())])


def decode(body: bytes) -> Probe:
    """Parse the body of a message.

    Raises:
        AlteredError: it is not the body of a probe.
    """
    try:
        text, checksum = orjson.loads(body)
        if zlib.crc32(text.encode()) != checksum:
            raise AlteredError("its checksum is wrong")
        run, group, queue, number = text.split(" ")
        return Probe(run, Lane(group, int(queue)), int(number))
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, AlteredError):
            raise
        raise AlteredError("its body is not that of a probe") from error
