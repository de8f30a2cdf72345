"""
One command of the remoting protocol: a request or a response, as both ends see it.

Rule: a command says what is on the wire and nothing else. `ext` holds text only, because the Go client
refuses anything but strings there; `codec` turns values that a peer sent unquoted into text.
The typed view of `ext` is in the package `header`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Final

from orderlymq_protocol.codes import REPORTED_VERSION, LanguageCode, SerializeType

FLAG_RESPONSE: Final = 0x1
FLAG_ONEWAY: Final = 0x2

# The text of a refusal may quote the request, which may have megabytes; a remark must not be that long.
REMARK_LENGTH_MAX: Final = 1_000
# For the command itself and its place in a queue; some 300 bytes were measured.
_OWN_BYTES: Final = 1_000


# Not frozen: one is built for every frame, and a frozen dataclass takes three times as long to build.
@dataclass(slots=True)
class RemotingCommand:
    """A request or a response with its header and body.

    `opaque` pairs a response with its request. The sender of the request chooses it; it is an int32.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    language: int = LanguageCode.PYTHON
    version: int = REPORTED_VERSION
    serialize_type: SerializeType = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        """Whether this answers a request that we sent."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer; it must not get one, not even an error."""
        return self.flag & FLAG_ONEWAY != 0

    def memory_bytes(self) -> int:
        """Return about how much memory it takes; code that keeps requests of strangers limits them by this.

        A field of one letter takes a hundred times its length, and a text with one wide letter four times.
        """
        ext = self.ext
        texts = sum(map(getsizeof, ext)) + sum(map(getsizeof, ext.values()))
        return getsizeof(self.body) + getsizeof(self.remark) + getsizeof(ext) + texts + _OWN_BYTES

    def reply(
        self,
        code: int = 0,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> "RemotingCommand":
        """Return the response to this request, with the same opaque and the same form of header."""
        return RemotingCommand(
            code,
            self.opaque,
            FLAG_RESPONSE,
            {} if ext is None else dict(ext),
            body,
            bounded_remark(remark),
            LanguageCode.PYTHON,
            REPORTED_VERSION,
            self.serialize_type,
        )


def bounded_remark(remark: str | None) -> str | None:
    """Return *remark*, cut to what an answer may carry, because the names and texts in it come from the request."""
    if remark is None or len(remark) <= REMARK_LENGTH_MAX:
        return remark
    return remark[:REMARK_LENGTH_MAX]


def request(
    code: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    oneway: bool = False,
) -> RemotingCommand:
    """Return a request without an opaque; the connection that sends it sets one."""
    return RemotingCommand(
        code,
        flag=FLAG_ONEWAY if oneway else 0,
        ext={} if ext is None else dict(ext),
        body=body,
    )
