"""
The shared context of all processors: the state, the leader's view of it, connected clients, and answers.

The rules: processors read the state and never change it; a change that must survive the leader becomes a
``Propose``; ``answer`` sends no answer to a oneway request, not even an error, no refusal that its client would take for
success, and no error but 22 to an offset query of RocketMQ's clients: those up to 4.9 take any other for "never committed" and
jump to the end of the queue. The pieces are put together in ``processors/dispatch.py``.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from orderlymq_broker.core.clientsessions import Session, Sessions
from orderlymq_broker.core.effects import Close, Effect, Now, Peer, Refusal, Send
from orderlymq_broker.core.entrybuilder import EntryBuilder
from orderlymq_broker.core.listings import Listings
from orderlymq_broker.core.livesettings import effective
from orderlymq_broker.core.messageage import MessageAge
from orderlymq_broker.core.pullpositions import PullPositions
from orderlymq_broker.core.quotas import Quotas
from orderlymq_broker.core.uncommitted import Creation, LeaderView
from orderlymq_broker.settings import BrokerSettings
from orderlymq_broker.state.admin.accessrecords import Quota
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_broker.store.kv import Reader
from orderlymq_protocol.codes import REPORTED_VERSION, LanguageCode, RequestCode, ResponseCode
from orderlymq_protocol.frame.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    RemotingCommand,
    bounded_remark,
)
from orderlymq_protocol.header.catalogue import QueryConsumerOffsetHeader
from orderlymq_protocol.header.declaration import HeaderError
from orderlymq_protocol.message.record import pack_host
from orderlymq_protocol.names import InvalidName

# How many client ids used over two connections the status shows; the counter counts them all.
DUPLICATES_SHOWN_MAX: Final = 100
# Requests of which Go's client, up to 2.1.2 at least, takes every answer for success: that the message is stored that it hands
# back, and that the group has the members that the answer lists.
_UNREAD_BY_GO: Final = frozenset(
    {RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.GET_CONSUMER_LIST_BY_GROUP}
)
# RocketMQ 5.0.0, which reads codes right, has the number of its preview, which does not.
_MISREADING_VERSION_MAX: Final = 413

Handler: TypeAlias = Callable[[RemotingCommand, Peer, Now], list[Effect]]


class RequestRefused(Exception):  # noqa: N818 - not an error of ours: the answer to give
    """The request is answered with this code, remark and fields, and changes nothing."""

    def __init__(self, code: int, remark: str, ext: dict[str, str] | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext = ext


class CreateFirst(Exception):  # noqa: N818 - not an error: what to do before the request is served
    """The request needs these records applied first; ``processors/dispatch.py`` proposes them and comes back."""

    def __init__(self, *records: TopicSet | GroupSet) -> None:
        super().__init__(records)
        self.records = records

    @property
    def names(self) -> Creation:
        """Return the names that are created, without their settings."""
        return tuple((type(each).__name__, each.name) for each in self.records)


class Context:
    """State, settings and the leader's memory.

    Attributes:
        manifest: the settings that this process was started with, and the live ones of its file as it is now.
        settings: the settings that hold now: the manifest's, and what administrators changed since.
        leading: this replica leads and has applied its whole log.
        leader_known: as a follower, somebody else is known to lead.
        view: the leader's promises beyond the applied state.
        entries: what proposals pass on their way into the log; gives offsets.
        listings: writes long lists bit by bit.
        ages: how old messages are for certain.
        positions: how far groups have pulled.
        counters: how often things happened, by name; shown in the status and as metrics.
        got: answers with messages and their bytes, by topic and group, since `observe/rates.py` took them last.
        duplicate_clients: client ids used over two live connections, with the older and the newer.
        unparked_groups: groups that should hold keys, and whose members handed a dead letter over without, since `observe/watch.py`
            looked last.
        disk_full: sends are refused until the disk has room again.
        held_end: physical offset where what waits at the floor of the log ends, if that keeps retention from making room; else 0.
        quotas: what addresses and accounts use.
        replication: the shell's last report about the replicas, for the status only.
    """

    def __init__(self, settings: BrokerSettings, state: BrokerState, reader: Reader) -> None:
        self.manifest = settings
        self.state = state
        self.refresh_settings()
        self.reader = reader
        self.leading = False
        self.leader_known = False
        self.term = 0
        self.view = LeaderView()
        self.sessions = Sessions()
        self.quotas = Quotas(
            Quota(
                settings.address_quotas.requests_per_s,
                settings.address_quotas.bytes_per_s,
                settings.address_quotas.connections,
            )
        )
        self.counters: Counter[str] = Counter()
        self.got: defaultdict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
        # What groups have sent back, by topic and group.
        self.sent_back: Counter[tuple[str, str]] = Counter()
        self.duplicate_clients: dict[str, tuple[Peer, Peer]] = {}
        self.unparked_groups: set[str] = set()
        self.disk_ratio = 0.0
        self.disk_full = False
        self.held_end = 0
        self.replication: dict[str, Any] = {}
        self.store_host = pack_host(settings.address.host, settings.address.port)
        self.entries = EntryBuilder(self.store_host, state)
        self.listings = Listings()
        self.ages = MessageAge(state)
        self.positions = PullPositions(state.members)
        self.message_id_prefix = self.store_host.hex().upper()
        self._opaque = 0

    def follow(self, manifest: BrokerSettings) -> None:
        """Take over the settings of the changed manifest."""
        self.manifest = manifest
        self.refresh_settings()

    def refresh_settings(self) -> None:
        """Take over what administrators have changed; called when a change is applied."""
        self.settings = effective(self.manifest, self.state.overrides.values)

    def handed_out(self, peer: Peer, topic: str, group: str, messages: int, size: int) -> None:
        """Count an answer of *size* bytes with messages for a group."""
        self.counters["messages_out"] += messages
        self.counters["bytes_out"] += size
        answers, total = self.got[topic, group]
        self.got[topic, group] = answers + 1, total + size
        self.quotas.handed_out(peer, size)

    def message_id(self, physical: int) -> str:
        """Return the offset id of the message at *physical*: clients view it at our address."""
        return f"{self.message_id_prefix}{physical:016X}"

    def address_for(self, peer: Peer) -> str:
        """Return where a sender reaches this group, for answers; one of another network is given the name alone.

        The name server of its listener says where that is (ADR 25).
        """
        return self.settings.group if peer.listener else str(self.settings.address)

    def note_duplicate(self, client_id: str, older: Peer, newer: Peer) -> None:
        """Note that a client id is used over two connections: only an operator can know why."""
        self.counters["duplicate_clients"] += 1
        self.duplicate_clients[client_id] = (older, newer)
        if len(self.duplicate_clients) > DUPLICATES_SHOWN_MAX:
            del self.duplicate_clients[next(iter(self.duplicate_clients))]

    def next_opaque(self) -> int:
        """Return a number for a request of our own."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def note_consumer(self, group: str, peer: Peer) -> Session | None:
        """Note that a connection consumes for *group*, unless it has said so itself; return its session.

        For pulls: RocketMQ's consumers pull immediately at a new leader and say who they are up to half a
        minute later. A group without members is read by tools alone.
        """
        session = self.sessions.get(peer.connection)
        if (session is None or not session.heartbeat) and self.state.members.of_group(group):
            self.sessions.consumed(group, peer.connection)

        return session


def check_name(check: Callable[[str], None], name: str) -> None:
    """Refuse a name of a topic or group that *check* does not allow.

    Raises:
        RequestRefused: it does not (1).
    """
    try:
        check(name)
    except InvalidName as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error


def answer(
    request: RemotingCommand,
    peer: Peer,
    code: int = 0,
    *,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    remark: str | None = None,
) -> list[Effect]:
    """Return the reply to *request*, or nothing when its sender wants none or would misread it."""
    if request.flag & FLAG_ONEWAY:
        return []
    if code and reads_no_code(request):
        return []
    if code and is_misread(request, code):
        return [Close(peer.connection, remark or f"request {request.code} failed")]
    # Built here instead of with `request.reply`, which copies the ext once more.
    command = RemotingCommand(
        code,
        request.opaque,
        FLAG_RESPONSE,
        {} if ext is None else ext,
        body,
        bounded_remark(remark),
        LanguageCode.PYTHON,
        REPORTED_VERSION,
        request.serialize_type,
    )

    return [Send(peer.connection, command)]


def is_misread(request: RemotingCommand, code: int) -> bool:
    """Return whether clients would take the refusal *code* for something else: then the connection is closed.

    The SDK, which says that it speaks Python, gets the refusal for a missing right. A question that no client
    sends gets its refusal, too. RocketMQ's Java client since 5.1 takes code 22 alone for "no offset", and asks again after
    any other.
    """
    if request.code != RequestCode.QUERY_CONSUMER_OFFSET or code == ResponseCode.QUERY_NOT_FOUND:
        return False
    if request.language == LanguageCode.PYTHON and code == ResponseCode.NO_PERMISSION:
        return False
    if request.language == LanguageCode.JAVA and request.version > _MISREADING_VERSION_MAX:
        return False
    try:
        QueryConsumerOffsetHeader.from_ext(request.ext)
    except HeaderError:
        return False

    return True


def reads_no_code(request: RemotingCommand) -> bool:
    """Return whether the client takes every answer to a request for success: then a refusal is not sent.

    Go's would skip the message that it hands back (36), and leave all queues of a topic (38). Without an answer for 3 s it keeps
    them and asks again. It would not notice the end of its connection earlier, and lose the answers to all that it has asked there.
    """
    return request.language == LanguageCode.GO and request.code in _UNREAD_BY_GO


def unanswered(request: RemotingCommand, *fields: str) -> RemotingCommand:
    """Return a waiting request without its body and without fields that its answer does not need.

    A header may have a megabyte, and a hundred thousand requests wait.
    """
    ext = {name: request.ext[name] for name in fields if name in request.ext}
    kept = RemotingCommand(
        request.code, request.opaque, request.flag, ext, language=request.language
    )
    kept.serialize_type = request.serialize_type

    return kept


def answer_lost(
    request: RemotingCommand,
    peer: Peer,
    refusal: Refusal | None,
    remark: str,
    code: int = ResponseCode.SYSTEM_ERROR,
) -> list[Effect]:
    """Return the reply to a request whose records were not stored: why, or *remark* if they were lost."""
    if refusal is not None:
        code, remark = refusal.code, refusal.remark

    return answer(request, peer, code, remark=remark)
