"""Set options of a transport's socket; a peer that is already gone is not an error here."""

import asyncio
import logging

from orderlymq_runtime.sockets.streamtransport import StreamTransport

_log = logging.getLogger(__name__)


def set_option(
    transport: StreamTransport | asyncio.BaseTransport, level: int, option: int, value: int | bytes
) -> None:
    """Set an option of the socket behind *transport*, if it has one."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    try:
        sock.setsockopt(level, option, value)
    except OSError as error:  # the peer may already be gone; that is reported by the transport
        _log.debug("%r: socket option %d: %s", sock, option, error)
