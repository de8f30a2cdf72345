"""
Further listeners of brokers and name servers, for clients that reach them by addresses of another network.

Rule: a server's own listener has no name. A connection of a further listener is marked with the listener's name, and
answers on it name addresses of that listener or none (ADR 25).
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from orderlymq_runtime.remoting.server import Outside
from orderlymq_runtime.security.tls import TlsSettings

# Each listener costs every server a port, and every broker group an address.
LISTENERS_MAX: Final = 8
ListenerName: TypeAlias = Annotated[
    str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=20)
]


class ListenerError(ValueError):
    """Two listeners have the same name; the text says which."""


class OutsideListener(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One further listener of a server.

    Attributes:
        name: unique in the server, equal in all servers of the cluster.
        host: address to bind.
        port: port to bind, different from those of the server itself.
        tls: TLS that is served there, independent of the server's own port.
    """

    name: ListenerName
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    tls: TlsSettings = TlsSettings()

    def mark(self) -> Outside:
        """Return the argument for `RemotingServer.listen`.

        Raises:
            TlsError: a file cannot be used.
        """
        return Outside(self.name, self.tls.server())


OutsideListeners: TypeAlias = Annotated[
    list[OutsideListener], msgspec.Meta(max_length=LISTENERS_MAX)
]


def check_listeners(listeners: OutsideListeners) -> None:
    """Check that names are unique and that the TLS of each listener can be used.

    Raises:
        ListenerError: two listeners have the same name.
        TlsError: a file cannot be used.
    """
    known: set[str] = set()
    for listener in listeners:
        if listener.name in known:
            raise ListenerError(
                f"two listeners have the name {listener.name}; give each its own name"
            )
        known.add(listener.name)
        listener.mark()
