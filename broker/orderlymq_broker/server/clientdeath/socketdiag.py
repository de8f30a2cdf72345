"""
Looks up one TCP connection of this machine by its ends: Linux's sock_diag(7).

The TCP tables of /proc list every connection, which takes tens of milliseconds. The client of a new
connection may be killed meanwhile. This lookup takes a few microseconds.
"""

import socket
from struct import Struct, error
from typing import Final

from orderlymq_protocol.hosts import ip_of

_FAMILY: Final = getattr(socket, "AF_NETLINK", None)
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_ANY_COOKIE: Final = (0xFFFFFFFF, 0xFFFFFFFF)
_ESTABLISHED: Final = 1
# A kernel without sock_diag answers with an error; one that does not answer must not hold up the look.
_ANSWER_MAX_S: Final = 0.05

# linux/netlink.h and linux/inet_diag.h: nlmsghdr; inet_diag_req_v2 up to the ports, the rest of it; inet_diag_msg.
_HEADER: Final = Struct("=IHHII")
_REQUEST: Final = Struct("=BBBxI")
_PORTS: Final = Struct(">HH16s16s")
_COOKIE: Final = Struct("=III")
_ANSWER: Final = Struct("=BBBB48xIIIII")


def inode_of(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """Return the inode of the established connection that has these ends, or None if none is found."""
    if _FAMILY is None:
        return None
    addresses = [_packed(local[0]), _packed(remote[0])]
    if len(addresses[0]) != len(addresses[1]) or not addresses[0]:
        return None
    family = socket.AF_INET if len(addresses[0]) == 4 else socket.AF_INET6
    body = (
        _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED)
        + _PORTS.pack(local[1], remote[1], *addresses)
        + _COOKIE.pack(0, *_ANY_COOKIE)
    )
    head = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(_FAMILY, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as asked:
            asked.settimeout(_ANSWER_MAX_S)
            asked.send(head + body)
            answer = asked.recv(4096)
        if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
            return None
        found = _ANSWER.unpack_from(answer, _HEADER.size)
    except (OSError, error):
        return None
    return int(found[-1]) or None if found[1] == _ESTABLISHED else None


def _packed(host: str) -> bytes:
    """Return an address in the form of packets; empty if the text is not an address."""
    address = ip_of(host)
    return b"" if address is None else address.packed
