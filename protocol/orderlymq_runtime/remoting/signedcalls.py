"""
Signed calls: a restarted server refuses once and sends its new mark; the request is signed with this mark and sent again.

`orderlymq_protocol.signature` says what is signed.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.signature import Signer
from orderlymq_runtime.remoting.client import RemotingClient
from orderlymq_runtime.security.clustersecret import NAME_SERVERS, derived_key
from orderlymq_runtime.wallclock import machine_ms

_NONCE_BYTES: Final = 16


def new_signer(key: str, secret: bytes, clock_ms: Callable[[], int] = machine_ms) -> Signer:
    """Return a signer that uses the time of day of *clock_ms*."""
    return Signer(
        key,
        secret,
        clock_ms=clock_ms,
        nonce=lambda: secrets.token_hex(_NONCE_BYTES),
    )


def name_server_signer(cluster_secret: bytes, clock_ms: Callable[[], int] = machine_ms) -> Signer:
    """Return a signer for changes at the name servers of a cluster."""
    return new_signer(NAME_SERVERS, derived_key(cluster_secret, NAME_SERVERS), clock_ms)


async def invoke_signed(
    client: RemotingClient,
    signer: Signer,
    address: str,
    command: RemotingCommand,
    timeout_s: float,
) -> RemotingCommand:
    """Call *address* with a signed copy of *command* and return the answer, with any code.

    A second try gets the rest of *timeout_s* (seconds).

    Raises:
        RemotingError: There is no answer, as `RemotingClient.invoke` says.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    answer, again = await _signed(client, signer, address, command, timeout_s)
    left_s = end_s - loop.time()
    if again and left_s > 0:
        # The request was refused, so nothing was done. A second refusal is the answer.
        answer, _ = await _signed(client, signer, address, command, left_s)
    return answer


async def _signed(
    client: RemotingClient,
    signer: Signer,
    address: str,
    command: RemotingCommand,
    timeout_s: float,
) -> tuple[RemotingCommand, bool]:
    ext = signer.sign(address, command.code, command.ext, command.body)
    answer = await client.invoke(address, replace(command, ext=ext), timeout_s)
    return answer, signer.learn(address, answer, ext)
