"""
Listening sockets for IPv4 and IPv6.

Rule: the host "::" means every address of this machine, of both families; without IPv6 on the machine, every IPv4 address. Otherwise
an IPv6 socket would depend on a setting of the kernel, and asyncio's own would take IPv6 only. Every other host means itself.
"""

import asyncio
import errno
import socket
from typing import Final

EVERY_ADDRESS: Final = "::"
_EVERY_IPV4: Final = "0.0.0.0"  # noqa: S104 - what "::" means where there is no IPv6


async def listening_socket(host: str, port: int, *, backlog: int) -> socket.socket:
    """Return a socket that listens at the first address of *host*.

    Raises:
        OSError: the address cannot be bound.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    try:
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        if host != EVERY_ADDRESS or error.errno != errno.EAFNOSUPPORT:
            raise
        return await listening_socket(_EVERY_IPV4, port, backlog=backlog)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != EVERY_ADDRESS))
        sock.bind(address)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock
