"""
Reading the HTTP pages of programs in pods: replicas, canaries, drivers of pipelines.

Rule: the author of a pod's image chooses its answers. So no answer, compressed or not, takes more memory than
``SIZE_MAX`` or the caller's bound, and no answer redirects the operator to another address.
"""

import ssl
from collections.abc import Mapping
from typing import Final

import aiohttp

# A replica's status with all members, or a driver's report, is a few KiB.
SIZE_MAX: Final = 1 << 20
_PLAIN: Final = {"Accept-Encoding": "identity"}


async def read_page(
    session: aiohttp.ClientSession,
    url: str,
    timeout_s: float,
    *,
    tls: ssl.SSLContext | bool = True,
    headers: Mapping[str, str] | None = None,
    size_max: int = SIZE_MAX,
) -> bytes:
    """Return the body of a page; a body longer than *size_max* is cut off soon after that length.

    Raises:
        aiohttp.ClientError, TimeoutError, OSError: it does not answer.
    """
    body = bytearray()
    async with session.get(
        url,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        ssl=tls,
        headers={**_PLAIN, **(headers or {})},
        allow_redirects=False,
        auto_decompress=False,
    ) as answer:
        # One read returns one packet.
        async for piece in answer.content.iter_any():
            body += piece
            if len(body) > size_max:
                break

    return bytes(body)
