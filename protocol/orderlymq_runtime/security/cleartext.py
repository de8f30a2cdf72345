"""
Secrets in the clear: what may be sent over a connection that nothing encrypts.

Rule: a request that holds a secret leaves this machine encrypted or not at all. Signatures hold no secret. What RocketMQ's own
tools send is the decision of their users.
"""

import socket
from ipaddress import ip_address
from typing import Final

from orderlymq_protocol.hosts import is_loopback
from orderlymq_runtime.sockets.addresses import split_address

_DISCARD_PORT: Final = 9  # any port does, because nothing is sent


class SecretInClear(ValueError):  # noqa: N818 - named for what would have happened
    """A secret would be readable on the network; the text says what to do."""


def check_protection(address: str, *, is_encrypted: bool, what: str, cure: str) -> None:
    """Refuse to send a secret, named by *what*, to *address* ("host:port") if others could read it.

    Raises:
        SecretInClear: neither TLS nor loopback protects it; *cure* says what would.
    """
    if is_encrypted or stays_here(split_address(address)[0]):
        return
    raise SecretInClear(f"{what} would be sent to {address} unencrypted, so it is not sent: {cure}")


def stays_here(host: str) -> bool:
    """Return whether packets to *host* stay on this machine; names are not looked up, because answers can be forged."""
    if is_loopback(host):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _DISCARD_PORT))
            return str(probe.getsockname()[0]) == str(address)
    except OSError:
        return False
