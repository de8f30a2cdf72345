"""The socket of a connection on this machine is found by its two addresses."""

import os
import socket

import pytest

from orderlymq_broker.server.clientdeath.socketdiag import inode_of


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_both_sockets_of_a_connection_are_found_by_its_ends(host: str) -> None:
    """Law: each socket of a connection is found by its own end first, also with IPv4 addresses written as IPv6."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener,
        socket.socket(family) as client,
    ):
        client.connect((host, listener.getsockname()[1]))
        accepted, _ = listener.accept()
        with accepted:
            ends = client.getsockname()[:2], client.getpeername()[:2]
            found = inode_of(*ends), inode_of(*reversed(ends))

            assert found == (os.fstat(client.fileno()).st_ino, os.fstat(accepted.fileno()).st_ino)


@pytest.mark.parametrize(
    "ends",
    [
        (("192.0.2.1", 4711), ("192.0.2.2", 4712)),
        (("127.0.0.1", 4711), ("::1", 4712)),
        (("", 0), ("127.0.0.1", 4712)),
        (("", 0), ("", 0)),
    ],
)
def test_what_is_no_connection_of_this_machine_is_not_found(
    ends: tuple[tuple[str, int], tuple[str, int]],
) -> None:
    """Law: no socket is found for another machine, for two address families or without an address."""
    assert inode_of(*ends) is None


def test_a_connection_that_ended_is_not_found() -> None:
    """Law: a connection that has ended is not found, even if the kernel still remembers it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        ends = client.getsockname(), client.getpeername()
        client.close()
        accepted.close()

        assert inode_of(*ends) is None
