"""Servers listen for IPv4 and IPv6, and show clients by their plain addresses."""

import socket
from pathlib import Path

import pytest

from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.client import RemotingClient
from orderlymq_runtime.remoting.server import RemotingServer
from orderlymq_runtime.security.tls import ServerTls, following_client
from orderlymq_runtime.sockets.addresses import join_address, plain_host, split_address
from orderlymq_runtime.sockets.listener import listening_socket
from tests.runtime.certificates import make_authority, make_certificate
from tests.runtime.peers import Recorder, echo

TIMEOUT_S = 20.0


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6; runs in CI")


@needs_ipv6
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    ("host", "called"), [("::1", ["::1"]), ("::", ["::1", "127.0.0.1"]), ("0.0.0.0", ["127.0.0.1"])]
)
async def test_a_server_is_called_by_every_family_that_it_listens_for(
    tmp_path: Path, host: str, called: list[str], tls: bool
) -> None:
    """Law: "::" listens for IPv4 and IPv6, also with TLS; an IPv4 client is known by its IPv4 address."""
    files = make_certificate(make_authority(tmp_path), "server") if tls else None
    handler = Recorder(echo)
    server = RemotingServer(handler, tls=None if files is None else ServerTls(files, "enforcing"))
    _, port = await server.listen(host, 0)
    context = None if files is None else following_client(files, verify_host=False)
    client = RemotingClient(tls=context)
    for each in called:
        reply = await client.invoke(join_address(each, port), RemotingCommand(105), TIMEOUT_S)
        assert reply.code == 0
    peers = {conn.peer[0] for conn in server.connections}
    await client.close()
    await server.close()

    assert peers == set(called)


@needs_ipv6
async def test_an_address_of_ipv6_alone_takes_no_ipv4() -> None:
    """Law: only "::" stands for both families; another IPv6 address takes no IPv4."""
    with await listening_socket("::1", 0, backlog=1) as sock:
        assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1


@pytest.mark.parametrize(
    ("host", "plain"),
    [
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("::ffff:x", "::ffff:x"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_an_address_inside_another_is_shown_by_itself(host: str, plain: str) -> None:
    """Law: an IPv4 address inside an IPv6 one is shown as IPv4, because locks, quotas and white addresses compare text."""
    assert plain_host(host) == plain


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "2001:db8::7", "broker-0.svc"])
def test_an_address_is_put_together_as_it_is_taken_apart(host: str) -> None:
    """Law: join_address and split_address are inverse, with brackets around IPv6, which Go's client needs."""
    address = join_address(host, 10911)

    assert split_address(address) == (host, 10911)
    assert address.startswith("[") == (":" in host)
