"""
Attacks of a stranger that fail at the replica port.

Before there was a handshake, the greeting alone made every caller a member: each of these attacks succeeded, because
its frames are those of a replica and nothing else was checked.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from orderlymq_broker.replication.snapshotframes import Offer
from orderlymq_broker.replication.transport import pendinghandshakes
from orderlymq_broker.replication.transport.connection import FrameConnection
from orderlymq_broker.replication.transport.frameheaders import (
    CallerProof,
    Challenge,
    Hello,
    Purpose,
)
from orderlymq_broker.replication.transport.frames import (
    Frame,
    FrameKind,
    decode_header,
    encode_frame,
    encode_messages,
)
from orderlymq_broker.replication.transport.handshake import Identity, proof
from orderlymq_broker.replication.transport.links import Refused, dial
from orderlymq_broker.replication.transport.server import Transport
from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_broker.store.snapshot import Manifest
from orderlymq_raft import Membership, Message
from orderlymq_raft.messages import Append
from orderlymq_raft.types import Entry, EntryKind, Index, NodeId, Term
from orderlymq_runtime.security.tls import (
    InternalTls,
    PeerTls,
    TlsFiles,
    TlsSettings,
    client_context,
)
from tests.broker.test_app import get, running
from tests.ports import free_ports
from tests.runtime.certificates import make_authority, make_certificate
from tests.security.strangers import PATIENCE_S, Stranger, greeting

KEY = bytes(range(32))
SILENT = 1_000
# Fewer than the backlog of a listening socket: the kernel drops further calls, which are repeated after a second.
CALLS_AT_ONCE = 50


class Heard:
    """Notes all frames that a transport accepts."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def messages_received(self, messages: list[Message]) -> None:
        self.events.append(f"{len(messages)} messages")

    def frame_received(self, node: NodeId, frame: Frame) -> None:
        self.events.append(f"frame of {node}")

    def clock_received(self, node: NodeId, wall_ms: int) -> None:
        self.events.append(f"clock of {node}")

    def stickiness_received(self, node: NodeId, sticks_ms: int) -> None:
        self.events.append(f"stickiness of {node}")

    def snapshot_shown(self, node: NodeId, index: int) -> None:
        self.events.append(f"snapshot of {node}")

    def peer_unreachable(self, node: NodeId, purpose: Purpose) -> None:
        self.events.append(f"unreachable {node}")

    def peer_greeted(self, node: NodeId, address: Address) -> None:
        self.events.append(f"{node} is at {address}")

    def peer_reached(self, node: NodeId) -> None:
        self.events.append(f"{node} reached")

    def peer_wiped(self, node: NodeId) -> None:
        self.events.append(f"{node} wiped")

    def peer_lost(self, node: NodeId, purpose: Purpose) -> None:
        self.events.append(f"lost {node}")

    def snapshot_caller(self, node: NodeId, connection: FrameConnection) -> None:
        self.events.append(f"snapshot of {node}")


class Replica:
    """Node 1 of broker group g in cluster C, as other replicas see it."""

    def __init__(self, *, tls: PeerTls | None = None, is_certified: bool = False) -> None:
        self.address = Address("127.0.0.1", free_ports(1)[0])
        self.heard = Heard()
        identity = Identity("C", "g", NodeId(1), self.address, KEY, is_certified)
        self.transport = Transport(identity, self.heard, tls=tls)

    async def until(self, event: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while event not in self.heard.events:  # noqa: ASYNC110 - the events of sockets
                await asyncio.sleep(0.001)


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    made = Replica()
    await made.transport.listen(made.address)
    yield made
    await made.transport.close()


def member(node: int = 2, *, is_certified: bool = False) -> Identity:
    """Return a member that knows the secret of the cluster."""
    return Identity("C", "g", NodeId(node), Address("127.0.0.1", 7), KEY, is_certified)


def append_of_term_50(sender: int) -> list[bytes]:
    entry = Entry(Term(50), Index(1), b"forged", EntryKind.NORMAL)
    return encode_messages(
        [Append(NodeId(sender), NodeId(1), Term(50), Index(0), Term(0), Index(1), (entry,))]
    )


def forged_offer() -> list[bytes]:
    membership = Membership(frozenset({NodeId(1), NodeId(999)})).encode()
    manifest = Manifest(10**6, 50, membership, 0, ())
    return encode_frame(FrameKind.SNAPSHOT_OFFER, Offer(50, "forged", manifest))


# -- who does not know the secret ------------------------------------------------------------------


@pytest.mark.parametrize("sender", [2, 3, 999])
async def test_a_strangers_append_reaches_no_core(replica: Replica, sender: int) -> None:
    """The stranger greets with the id of a member or with an unknown id, and claims to lead term 50."""
    async with Stranger(replica.address) as stranger:
        await stranger.prove(greeting(1, sender))
        await stranger.say(append_of_term_50(sender))
        answers = await stranger.answers()

    assert answers == [FrameKind.REFUSED]
    assert replica.heard.events == []


async def test_frames_behind_a_greeting_are_heard_by_nobody(replica: Replica) -> None:
    """All frames arrive together, without waiting for the challenge: the second frame must be a proof."""
    async with Stranger(replica.address) as stranger:
        await stranger.say(
            encode_frame(FrameKind.HELLO, greeting(1)), append_of_term_50(2), append_of_term_50(2)
        )
        answers = await stranger.answers()

    assert FrameKind.WELCOME not in answers
    assert (replica.heard.events, replica.transport.violations) == ([], 1)


async def test_a_refused_greeting_is_not_followed_by_another(replica: Replica) -> None:
    """After a refusal, further frames are ignored, even those of the same piece."""
    async with Stranger(replica.address) as stranger:
        wrong, right = greeting(1, cluster="D"), greeting(1)
        await stranger.say(
            encode_frame(FrameKind.HELLO, wrong), encode_frame(FrameKind.HELLO, right)
        )
        assert await stranger.answers() == [FrameKind.REFUSED]


async def test_a_strangers_snapshot_is_not_received(replica: Replica) -> None:
    """The stranger's state would replace all acknowledged data."""
    async with Stranger(replica.address) as stranger:
        await stranger.prove(greeting(1, purpose="snapshot"))
        await stranger.say(forged_offer())
        answers = await stranger.answers()

    assert answers == [FrameKind.REFUSED]
    assert replica.heard.events == []


async def test_a_strangers_address_is_not_kept(replica: Replica) -> None:
    """A leader that connected to it would send its log there, including the secrets of accounts."""
    async with Stranger(replica.address) as stranger:
        await stranger.prove(greeting(1, host="203.0.113.66"))
        await stranger.answers()

    assert replica.heard.events == []


async def test_an_impostor_that_is_called_hears_no_log() -> None:
    """The called side must prove itself, too: before that, the caller sends only its part of the handshake."""
    said: list[FrameKind] = []

    def answer(connection: FrameConnection, frame: Frame) -> None:
        said.append(frame.kind)
        if frame.kind is FrameKind.HELLO:
            connection.send(encode_frame(FrameKind.CHALLENGE, Challenge(bytes(32))))
        else:
            connection.send(encode_frame(FrameKind.WELCOME, [False, bytes(32)]))

    address = Address("127.0.0.1", free_ports(1)[0])
    loop = asyncio.get_running_loop()
    async with await loop.create_server(
        lambda: FrameConnection(answer, lambda _: None), address.host, address.port
    ):
        with pytest.raises(Refused, match="does not know the secret"):
            await dial(member(), NodeId(1), address, "raft")

    assert said == [FrameKind.HELLO, FrameKind.PROOF]


@pytest.mark.parametrize("secret", [b"", bytes(32)], ids=["alone", "with a secret"])
async def test_a_broker_keeps_its_term_and_its_log(tmp_path: Path, secret: bytes) -> None:
    """In a whole process: nobody leads term 50, and the stranger's entries are not in the log."""
    client, http, raft = (Address("127.0.0.1", port) for port in free_ports(3))
    settings = BrokerSettings(
        cluster="C",
        group="g",
        node_id=1,
        peers={1: raft},
        address=client,
        http=http,
        data_dir=tmp_path / "data",
        cluster_secret=secret,
    )
    async with running(settings) as process:
        async with asyncio.timeout(PATIENCE_S):
            while (await get(settings, "readyz"))[0] != HTTPStatus.OK:
                pass
        before = process.instance.node.status()
        for purpose, frames in (("raft", append_of_term_50(2)), ("snapshot", forged_offer())):
            async with Stranger(raft) as stranger:
                await stranger.prove(greeting(1, purpose=purpose))  # type: ignore[arg-type] # of two words
                await stranger.say(frames)
                assert await stranger.answers() == [FrameKind.REFUSED]

        after = process.instance.node.status()
        assert (after.term, after.leader) == (before.term, NodeId(1))
        assert process.instance.loop.serving


# -- who has seen others speak ---------------------------------------------------------------------


class Recorder:
    """A relay between a member and a replica that keeps the member's bytes."""

    def __init__(self, replica: Replica) -> None:
        self.address = Address("127.0.0.1", free_ports(1)[0])
        self.said = b""
        self._replica = replica

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self._replica.address
        there, back = await asyncio.open_connection(target.host, target.port)

        async def answers() -> None:
            while data := await there.read(1 << 16):
                writer.write(data)

        passing = asyncio.create_task(answers())
        while data := await reader.read(1 << 16):
            self.said += data
            back.write(data)
        back.close()
        await passing
        writer.close()


async def test_a_recorded_handshake_opens_nothing(replica: Replica) -> None:
    """The called side makes a new nonce each time, so a recorded proof does not fit."""
    recorder = Recorder(replica)
    async with await asyncio.start_server(
        recorder.pass_on, recorder.address.host, recorder.address.port
    ):
        connection = await dial(member(), NodeId(1), recorder.address, "raft")
        connection.close()
        await replica.until("lost 2")
    replica.heard.events.clear()

    async with Stranger(replica.address) as stranger:
        await stranger.say([recorder.said])
        answers = await stranger.answers()

    assert answers == [FrameKind.CHALLENGE, FrameKind.REFUSED]
    assert replica.heard.events == []


@pytest.mark.parametrize(
    "changed",
    [
        greeting(1, purpose="snapshot"),
        greeting(1, host="203.0.113.66"),
        greeting(1, sender=3),
    ],
    ids=["purpose", "address", "sender"],
)
async def test_a_greeting_that_was_changed_on_its_way_is_refused(
    replica: Replica, changed: Hello
) -> None:
    """A proof covers the whole greeting, so it is invalid for any other greeting."""
    async with Stranger(replica.address) as stranger:
        await stranger.say(encode_frame(FrameKind.HELLO, changed))
        frame = await stranger.frame()
        assert frame is not None
        nonce = decode_header(frame, Challenge).nonce
        await stranger.say(
            encode_frame(FrameKind.PROOF, CallerProof(_proof_of(greeting(1), nonce)))
        )
        assert await stranger.answers() == [FrameKind.REFUSED]

    assert replica.heard.events == []


def _proof_of(hello: Hello, nonce: bytes) -> bytes:
    return proof(KEY, "caller", hello, nonce, is_recovering=False)


# -- crowds ----------------------------------------------------------------------------------------


@asynccontextmanager
async def crowd(address: Address, size: int) -> AsyncIterator[None]:
    """Open *size* connections that send nothing."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        for _ in range(size // CALLS_AT_ONCE):
            made = [stack.enter_context(socket.socket()) for _ in range(CALLS_AT_ONCE)]
            for sock in made:
                sock.setblocking(False)
            where = (address.host, address.port)
            await asyncio.gather(*(loop.sock_connect(sock, where) for sock in made))
        yield


async def test_a_crowd_of_strangers_costs_a_bounded_sum(replica: Replica) -> None:
    """Of a thousand silent connections only a bounded number is kept, and a member can still connect."""
    transport = replica.transport
    async with crowd(replica.address, SILENT):
        await closed(transport, SILENT - pendinghandshakes.UNPROVEN_MAX)

        connection = await dial(member(), NodeId(1), replica.address, "raft")

        assert connection.is_open
        assert transport.strangers <= pendinghandshakes.UNPROVEN_MAX
        assert "2 is at 127.0.0.1:7" in replica.heard.events
        connection.close()


async def test_a_crowd_that_never_ends_its_tls_handshake_is_bounded_too(tmp_path: Path) -> None:
    """Connections count from their accept, not from the end of their TLS handshake."""
    files = make_certificate(make_authority(tmp_path), "replica")
    tls = TlsSettings("enforcing", files.certificate, files.key, files.ca).between_peers()
    replica = Replica(tls=tls)
    await replica.transport.listen(replica.address)
    async with crowd(replica.address, SILENT):
        await closed(replica.transport, SILENT - pendinghandshakes.UNPROVEN_MAX)

        context = client_context(files, verify_host=False)
        connection = await dial(member(), NodeId(1), replica.address, "raft", tls=context)

        assert connection.is_open
        connection.close()
    await replica.transport.close()


async def closed(transport: Transport, number: int) -> None:
    """Wait until so many connections are closed, long before their time limit."""
    async with asyncio.timeout(PATIENCE_S):
        while transport.closes < number:  # noqa: ASYNC110 - the closes of sockets
            await asyncio.sleep(0.001)


# -- certificates ----------------------------------------------------------------------------------


def certified(ca: Path, uri: str, name: str) -> TlsFiles:
    return make_certificate(ca, name, uri=uri)


def internal(files: TlsFiles) -> PeerTls:
    assert files.certificate is not None
    assert files.key is not None
    assert files.ca is not None
    return InternalTls(files.certificate, files.key, files.ca).between_peers()


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "orderlymq://C/g/3",
        "orderlymq://C/other/2",
        "orderlymq://D/g/2",
        "orderlymq://C/nameserver",
        "orderlymq://C/operator",
    ],
)
async def test_a_certificate_of_the_authority_for_another_identity_is_refused(
    tmp_path: Path, uri: str
) -> None:
    """Node 2 is only the holder of node 2's certificate, even if another process knows the secret."""
    ca = make_authority(tmp_path)
    tls = internal(certified(ca, "orderlymq://C/g/1", "one"))
    replica = Replica(tls=tls, is_certified=True)
    await replica.transport.listen(replica.address)
    context = client_context(certified(ca, uri, "other"), verify_host=False)

    with pytest.raises(Refused, match="its certificate belongs to"):
        await dial(member(2), NodeId(1), replica.address, "raft", tls=context)

    assert replica.heard.events == []
    await replica.transport.close()


async def test_who_is_called_shows_its_own_certificate(tmp_path: Path) -> None:
    """A caller that wants node 1 sends nothing to node 3."""
    ca = make_authority(tmp_path)
    replica = Replica(tls=internal(certified(ca, "orderlymq://C/g/3", "three")), is_certified=True)
    await replica.transport.listen(replica.address)
    own = client_context(certified(ca, "orderlymq://C/g/2", "two"), verify_host=False)

    with pytest.raises(Refused, match=r"not to orderlymq://C/g/1"):
        await dial(member(2, is_certified=True), NodeId(1), replica.address, "raft", tls=own)

    await replica.transport.close()


async def test_the_authority_can_be_rolled_over(tmp_path: Path) -> None:
    """Replicas with certificates of the former and of the next authority connect while both are trusted."""
    former, following = make_authority(tmp_path / "a"), make_authority(tmp_path / "b")
    both = tmp_path / "both.pem"
    both.write_text(former.read_text() + following.read_text())
    one = certified(former, "orderlymq://C/g/1", "one")
    two = certified(following, "orderlymq://C/g/2", "two")
    replica = Replica(tls=internal(TlsFiles(one.certificate, one.key, both)), is_certified=True)
    await replica.transport.listen(replica.address)
    context = client_context(TlsFiles(two.certificate, two.key, both), verify_host=False)

    connection = await dial(
        member(2, is_certified=True), NodeId(1), replica.address, "raft", tls=context
    )

    assert "2 is at 127.0.0.1:7" in replica.heard.events
    connection.close()
    await replica.transport.close()
