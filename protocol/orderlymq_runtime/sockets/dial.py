"""
Open a connection to a host and port in a way that can be cancelled at any moment.

The name is looked up here and not by `create_connection`. uvloop's version abandons a look-up that is cancelled; if
the look-up fails later, as it does after seconds without DNS, the loop reports an exception that was never retrieved.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

_Made = TypeVar("_Made", bound=asyncio.BaseProtocol)


async def connect(
    make: Callable[[], _Made], host: str, port: int, tls: ssl.SSLContext | None = None
) -> _Made:
    """Return the protocol of a new connection; the addresses of the host are tried one after the other.

    Raises:
        OSError: the name is unknown, or nothing listens there; ssl.SSLError is a subclass.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = socket.gaierror(socket.EAI_NONAME, f"{host} has no address")
    for _, _, _, _, address in found:
        try:
            _, made = await loop.create_connection(
                make,
                str(address[0]),
                port,
                ssl=tls,
                server_hostname=None if tls is None else host,
            )
        except ssl.SSLError:
            raise  # a server was there
        except OSError as error:
            failure = error
        else:
            return made
    raise failure
