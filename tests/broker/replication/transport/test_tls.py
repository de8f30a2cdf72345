"""TLS between replicas: which callers are accepted, how a raft group changes to TLS, and new certificates."""

from pathlib import Path

import pytest

from orderlymq_broker.replication.transport.handshake import Identity
from orderlymq_broker.replication.transport.links import dial
from orderlymq_broker.settings import Address
from orderlymq_raft.types import NodeId
from orderlymq_runtime.security.tls import PeerTls, TlsFiles, TlsMode, TlsSettings, client_context
from tests.broker.replication.transport.peers import KEY, MakePeer, Peer, beat
from tests.runtime.certificates import make_authority, make_certificate


def between(files: TlsFiles, mode: TlsMode = "enforcing") -> PeerTls:
    tls = TlsSettings(mode, files.certificate, files.key, files.ca).between_peers()
    assert tls is not None
    return tls


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_certificate(make_authority(tmp_path_factory.mktemp("peers")), "replica")


async def hear(receiver: Peer, sender: Peer) -> None:
    """Wait until a message arrives."""
    sender.call(receiver)
    target = receiver.identity.node
    await receiver.recorder.wait_for(lambda: sender.transport.is_connected(target))
    message = beat(sender.identity.node, target, 7)
    sender.transport.send([message])
    await receiver.recorder.wait_for(lambda: message in receiver.recorder.messages)


async def test_replicas_speak_tls_with_certificates_of_both(
    make_peer: MakePeer, files: TlsFiles
) -> None:
    """Law: with TLS enforced, messages arrive encrypted and a plain call fails."""
    one = await make_peer(1, tls=between(files))
    two = await make_peer(2, tls=between(files))

    await hear(two, one)

    assert one.transport.context_for(NodeId(2)) is not None
    with pytest.raises((OSError, TimeoutError)):
        await dial(one.identity, NodeId(2), two.address, "raft")


@pytest.mark.parametrize("stranger", ["plain", "other CA", "no certificate"])
async def test_who_has_no_certificate_of_the_ca_is_no_replica(
    make_peer: MakePeer, files: TlsFiles, tmp_path: Path, stranger: str
) -> None:
    """Law: callers without TLS, without a certificate or with one of another authority are not accepted."""
    other = make_certificate(make_authority(tmp_path, "other"), "stranger")
    context = {
        "plain": None,
        "other CA": client_context(other, verify_host=False),
        "no certificate": client_context(TlsFiles(ca=files.ca), verify_host=False),
    }[stranger]
    home = await make_peer(1, tls=between(files))
    identity = Identity("C", "g", NodeId(2), Address("127.0.0.1", 1), KEY)

    with pytest.raises((OSError, TimeoutError)):
        await dial(identity, NodeId(1), home.address, "raft", tls=context)

    assert home.recorder.events == []


@pytest.mark.parametrize(("caller", "called"), [("permissive", None), (None, "permissive")])
async def test_a_group_can_change_from_plain_to_tls_replica_by_replica(
    make_peer: MakePeer, files: TlsFiles, caller: TlsMode | None, called: TlsMode | None
) -> None:
    """Law: a replica with permissive TLS talks to plain and TLS peers, so that a group changes replica by replica."""
    one = await make_peer(1, tls=between(files, caller) if caller else None)
    two = await make_peer(2, tls=between(files, called) if called else None)

    await hear(two, one)


async def test_one_that_permits_both_prefers_tls(make_peer: MakePeer, files: TlsFiles) -> None:
    """Law: a permissive replica prefers TLS, so that a raft group is encrypted as soon as all replicas can."""
    one = await make_peer(1, tls=between(files, "permissive"))
    two = await make_peer(2, tls=between(files))

    await hear(two, one)
    assert one.transport.context_for(NodeId(2)) is not None


async def test_a_new_certificate_counts_from_the_next_connection_on(
    make_peer: MakePeer, tmp_path: Path
) -> None:
    """Law: after the certificate files are replaced, new connections use them without a restart."""
    files = make_certificate(make_authority(tmp_path), "replica")
    one = await make_peer(1, tls=between(files))
    two = await make_peer(2, tls=between(files))
    await hear(two, one)

    (tmp_path / "new").mkdir()
    later = make_certificate(make_authority(tmp_path / "new"), "replica")
    for former, path in zip(
        (files.ca, files.certificate, files.key),
        (later.ca, later.certificate, later.key),
        strict=True,
    ):
        assert former is not None
        assert path is not None
        path.replace(former)
    three = await make_peer(3, tls=between(files))

    await hear(two, three)
    await hear(three, one)
