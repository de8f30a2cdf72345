"""Callers that neither read the answers to their requests nor hang up."""

import contextlib
import socket
import ssl
from collections.abc import Iterator

# The first bytes of a TLS handshake that is never continued.
_HALF_A_HANDSHAKE = b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03"
# After this time without progress the peer no longer reads, because its answers are not read.
_FULL_S = 0.5
_BYTES_MAX = 64 << 20


@contextlib.contextmanager
def stubborn_callers(port: int, asking: bytes, *, tls: bool = False) -> Iterator[None]:
    """Hold three kinds of connections: silent ones, ones with half of *asking*, and ones with unread answers to *asking*."""
    with contextlib.ExitStack() as stack:

        def call(*, encrypted: bool) -> socket.socket:
            caller = stack.enter_context(socket.socket())
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.settimeout(10.0)
            caller.connect(("127.0.0.1", port))
            return stack.enter_context(_encrypting(caller)) if encrypted else caller

        for encrypted in (False, True)[: 1 + tls]:
            call(encrypted=encrypted)
            call(encrypted=encrypted).sendall(asking[: len(asking) // 2])
            _fill(call(encrypted=encrypted), asking)
        if tls:
            call(encrypted=False).sendall(_HALF_A_HANDSHAKE)
        yield


def _encrypting(caller: socket.socket) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(caller)


def _fill(caller: socket.socket, asking: bytes) -> None:
    caller.settimeout(_FULL_S)
    many = asking * (65_536 // len(asking) + 1)
    with contextlib.suppress(
        TimeoutError, ConnectionError, ssl.SSLEOFError
    ):  # a peer that hangs up needs no waiting
        for _ in range(_BYTES_MAX // len(many)):
            caller.sendall(many)
        raise AssertionError("the other side reads on, although nobody reads what it answers")
