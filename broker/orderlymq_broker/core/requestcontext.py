"""
The context that all processors share: the state, the leader's view of it, connected clients, and answers.

The rules: processors read the state and never change it. A change that must survive the leader becomes a
``Propose``. ``answer`` sends no answer to a oneway request, not even an error. It sends no refusal that the
client would take for success. It sends no error except 22 to an offset query of RocketMQ's clients: those up
to 4.9 take any other for "never committed" and jump to the end of the queue. ``processors/dispatch.py`` puts
the parts together.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from orderlymq_broker.core.clientsessions import Session, Sessions
from orderlymq_broker.core.effects import Caller, Close, Effect, Now, Refusal, Send
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

# How many client ids used over two connections the status shows; the counter counts all of them.
DUPLICATES_SHOWN_MAX: Final = 100
# For these requests Go's client, up to 2.1.2 at least, takes every answer for success: it believes that the
# message it sent back is stored, and that the consumer group has the members in the answer.
_UNREAD_BY_GO: Final = frozenset(
    {RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.GET_CONSUMER_LIST_BY_GROUP}
)
# RocketMQ 5.0.0 reads codes correctly, but has the version number of its preview, which does not.
_MISREADING_VERSION_MAX: Final = 413

Handler: TypeAlias = Callable[[RemotingCommand, Caller, Now], list[Effect]]


class RequestRefused(Exception):  # noqa: N818 - not an error of ours: the answer to give
    """The request is answered with this code, remark and fields, and changes nothing."""

    def __init__(self, code: int, remark: str, ext: dict[str, str] | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext = ext


class CreateFirst(Exception):  # noqa: N818 - not an error: what to do before the request is served
    """The request needs these records applied first; ``processors/dispatch.py`` proposes them and retries the request."""

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
        manifest: the settings that this process was started with, with the present live settings of its file.
        settings: the present settings: the manifest's, with the later changes by administrators.
        leading: this replica leads and has applied its whole log.
        leader_known: this replica follows, and knows which replica leads.
        view: the leader's pending changes beyond the applied state.
        entries: checks proposals on their way into the log; gives offsets.
        listings: writes long lists step by step.
        ages: the proven ages of messages.
        positions: how far consumer groups have pulled.
        counters: how often events happened, by name; shown in the status and as metrics.
        got: answers with messages and their bytes, by topic and consumer group, since `observe/rates.py` last
            read them.
        duplicate_clients: client ids used over two live connections, with the older and the newer.
        unparked_groups: consumer groups that should hold keys, but whose members stored a dead letter without
            holding its key, since `observe/watch.py` last looked.
        disk_full: sends are refused until the disk has room again.
        held_end: physical offset at which the waiting messages at the floor of the log end, if they keep
            retention from making room; else 0.
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
        # How many messages consumer groups have sent back, by topic and group.
        self.sent_back: Counter[tuple[str, str]] = Counter()
        self.duplicate_clients: dict[str, tuple[Caller, Caller]] = {}
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
        """Use the settings of the changed manifest."""
        self.manifest = manifest
        self.refresh_settings()

    def refresh_settings(self) -> None:
        """Recompute the settings from the manifest and administrators' changes; called when a change is applied."""
        self.settings = effective(self.manifest, self.state.overrides.values)

    def handed_out(self, caller: Caller, topic: str, group: str, messages: int, size: int) -> None:
        """Count an answer of *size* bytes with messages for a consumer group."""
        self.counters["messages_out"] += messages
        self.counters["bytes_out"] += size
        answers, total = self.got[topic, group]
        self.got[topic, group] = answers + 1, total + size
        self.quotas.handed_out(caller, size)

    def message_id(self, physical: int) -> str:
        """Return the offset id of the message at *physical*; clients use it to view the message at our address."""
        return f"{self.message_id_prefix}{physical:016X}"

    def address_for(self, caller: Caller) -> str:
        """Return the address of this broker group for an answer; a caller from another network gets only the group's name.

        The name server of the caller's listener maps that name to an address (ADR 25).
        """
        return self.settings.group if caller.listener else str(self.settings.address)

    def note_duplicate(self, client_id: str, older: Caller, newer: Caller) -> None:
        """Note that a client id is used over two connections; only a person can find out why."""
        self.counters["duplicate_clients"] += 1
        self.duplicate_clients[client_id] = (older, newer)
        if len(self.duplicate_clients) > DUPLICATES_SHOWN_MAX:
            del self.duplicate_clients[next(iter(self.duplicate_clients))]

    def next_opaque(self) -> int:
        """Return the opaque of the next request that the broker sends."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def note_consumer(self, group: str, caller: Caller) -> Session | None:
        """Note that a connection consumes for a consumer group, unless it said so in a heartbeat; return its session.

        For pulls: RocketMQ's consumers pull from a new leader immediately, but send a heartbeat up to half a
        minute later. A group without members is read only by tools.
        """
        session = self.sessions.get(caller.connection)
        if (session is None or not session.heartbeat) and self.state.members.of_group(group):
            self.sessions.consumed(group, caller.connection)

        return session


def check_name(check: Callable[[str], None], name: str) -> None:
    """Refuse a name of a topic or group that *check* does not allow.

    Raises:
        RequestRefused: the name is not allowed (1).
    """
    try:
        check(name)
    except InvalidName as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error


def answer(
    request: RemotingCommand,
    caller: Caller,
    code: int = 0,
    *,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    remark: str | None = None,
) -> list[Effect]:
    """Return the reply to *request*; empty if its sender wants none or would misread it."""
    if request.flag & FLAG_ONEWAY:
        return []
    if code and reads_no_code(request):
        return []
    if code and is_misread(request, code):
        return [Close(caller.connection, remark or f"request {request.code} failed")]
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

    return [Send(caller.connection, command)]


def is_misread(request: RemotingCommand, code: int) -> bool:
    """Return whether the client would misread the refusal *code*; the broker then closes the connection.

    The SDK, which reports the language Python, gets the refusal for a missing permission. A query that no
    client sends gets its refusal, too. RocketMQ's Java client since 5.1 takes only code 22 for "no offset",
    and asks again after any other code.
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
    """Return whether the client takes every answer to a request for success; a refusal is then not sent.

    Go's client would skip the message that it sends back (36), and give up all queues of a topic (38).
    Without an answer for 3 s it keeps them and asks again. Closing the connection instead would not help: the
    client would not notice earlier, and would lose all other answers that it waits for on it.
    """
    return request.language == LanguageCode.GO and request.code in _UNREAD_BY_GO


def unanswered(request: RemotingCommand, *fields: str) -> RemotingCommand:
    """Return a waiting request without its body, keeping only the *fields* that its answer needs.

    A header may have a megabyte, and a hundred thousand requests may wait.
    """
    ext = {name: request.ext[name] for name in fields if name in request.ext}
    kept = RemotingCommand(
        request.code, request.opaque, request.flag, ext, language=request.language
    )
    kept.serialize_type = request.serialize_type

    return kept


def answer_lost(
    request: RemotingCommand,
    caller: Caller,
    refusal: Refusal | None,
    remark: str,
    code: int = ResponseCode.SYSTEM_ERROR,
) -> list[Effect]:
    """Return the reply to a request whose records were not stored: the refusal, or *remark* if they were lost."""
    if refusal is not None:
        code, remark = refusal.code, refusal.remark

    return answer(request, caller, code, remark=remark)
