"""
Identity of a client: its address, its client id, and the keys of its messages.

Rule: the client id carries the process id, as Java's does (`ip@pid#nanos`). So a broker on the same machine can prove
that the process is gone and hand over its queue locks immediately.
"""

import os
import secrets
import socket
import time
from ipaddress import ip_address
from typing import Final, TypeAlias

from orderlymq.errors import SettingError
from orderlymq.settings import DEFAULT_NAME_SERVER
from orderlymq_protocol.message.ids import UniqueKeyFactory
from orderlymq_runtime.sockets.addresses import split_address

BROADCAST_INSTANCE: Final = "DEFAULT"
"""RocketMQ keeps this name for broadcasting, so that the local offsets survive a restart."""


NameServers: TypeAlias = str | list[str] | tuple[str, ...] | None
"""Addresses as users give them; None leaves them to the environment."""


def parse_name_servers(text: NameServers) -> tuple[str, ...]:
    """Read `host:port;host:port`, separated by semicolons or commas, or a list of addresses.

    None means the environment, ORDERLYMQ_NAME_SERVER before RocketMQ's NAMESRV_ADDR, or this machine.

    Raises:
        SettingError: There is no address, or one has another form.
    """
    if text is None:
        environment = os.environ
        text = environment.get("ORDERLYMQ_NAME_SERVER") or environment.get("NAMESRV_ADDR")
        text = text or DEFAULT_NAME_SERVER
    parts: object = text.replace(",", ";").split(";") if isinstance(text, str) else text
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise SettingError(f"name_servers is {text!r}; write host:port, or a list of such texts")
    addresses = tuple(part.strip() for part in parts if part.strip())
    if not addresses:
        raise SettingError(
            "no name server address; pass name_servers='host:9876' or set ORDERLYMQ_NAME_SERVER"
        )
    for address in addresses:
        if "/" in address:
            raise SettingError(f"the name server address {address!r} is a URL; write host:port")
        try:
            split_address(address)
        except ValueError as error:
            raise SettingError(f"the name server address {error}; write host:port") from error
    return addresses


def own_ip(towards: str) -> str:
    """Return the address that this machine would use to reach *towards* ("host:port"); sends nothing."""
    host, port = split_address(towards)
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        # Not reachable now. The address is only shown to people, and the connection will report the error.
        return "127.0.0.1"


def make_client_id(ip: str, instance_name: str, unit_name: str) -> str:
    """Return `ip@instance[@unit]`; an empty instance name becomes process id and nanoseconds."""
    instance = instance_name or f"{os.getpid()}#{time.time_ns()}"
    return f"{ip}@{instance}@{unit_name}" if unit_name else f"{ip}@{instance}"


def make_unique_keys(ip: str) -> UniqueKeyFactory:
    """Return the factory of this client's message keys.

    Java's class-loader hash is replaced by a random number here; it distinguishes the clients of one process. If a
    name was chosen instead of an address, the keys carry 127.0.0.1.
    """
    try:
        address = ip_address(ip)
    except ValueError:
        address = ip_address("127.0.0.1")

    return UniqueKeyFactory(address.packed, os.getpid() & 0xFFFF, secrets.randbits(31))
