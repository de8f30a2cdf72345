"""
Quotas of requests, connections and bytes, for addresses and for accounts.

The rules: a request counts before it is served; the messages of a fetch count when they are handed out. Over
a quota the answer is RocketMQ's "system busy" (2), which names the quota and the remedy, and nothing has
happened. Sends, fetches and queries are refused when one second's worth is used up. Heartbeats, locks,
commits and administration may use one more second's worth, so that a client that sends too much keeps its
queues. The table is bounded: of the addresses and accounts without connections, it drops those first that
closed first. Each leader counts for itself, in memory; nothing here reads a clock. An IPv6 address counts as
its /64, because one machine can use all of it.
"""

from typing import Final, NamedTuple, TypeAlias

from orderlymq_broker.core.bodylimits import MESSAGE_CODES
from orderlymq_broker.core.effects import Caller, Now
from orderlymq_broker.state.admin.accessrecords import Quota
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.hosts import network_of
from orderlymq_protocol.plurals import counted

# Some hundred bytes each. Those with connections come in addition; the process limits its connections.
IDLE_MAX: Final = 10_000
# Rows of a metric: accounts with three quotas each. Further accounts are counted without a name.
REFUSED_MAX: Final = 1_000
# Requests that a client can delay.
LOAD: Final = MESSAGE_CODES | frozenset(
    {
        RequestCode.ORDERLYMQ_APPEND_COPIES,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.ORDERLYMQ_FETCH_LANES,
    }
)

_UNLIMITED: Final = Quota()

_Key: TypeAlias = tuple[str, str]
# An account, or an address without one.
Owner: TypeAlias = tuple[str, str]


class _Kind(NamedTuple):
    """The kind of an owner of quotas, in words, and the advice how to raise them."""

    name: str
    advice: str


_ADDRESS: Final = _Kind("address", "raise spec.addressQuotas of the Cluster")
_ACCOUNT: Final = _Kind("account", "ask an administrator to raise spec.quotas of the User")


class Bucket:
    """Tokens that arrive at a steady rate, at most one second's worth.

    A sender that finds a token may take more than there are, so that a message larger than a second's worth
    passes. The next message waits until the debt is paid off. So the average rate holds for messages of any
    size.

    Attributes:
        rate: tokens per second; more than 0.
    """

    __slots__ = ("_at_ms", "_level", "rate")

    def __init__(self, rate: int, now_ms: int) -> None:
        assert rate > 0, "no rate is no bucket"
        self.rate = rate
        self._level = float(rate)
        self._at_ms = now_ms

    def has_more_than(self, floor: float, now_ms: int) -> bool:
        """Return whether there are more than *floor* tokens; a negative level is debt."""
        return self._refilled(now_ms) > floor

    def take(self, tokens: int) -> None:
        """Take tokens, even more than there are."""
        self._level -= tokens

    def wait_ms(self, now_ms: int) -> int:
        """Return after how many milliseconds there will be a token."""
        return max(0, int(-self._refilled(now_ms) * 1000 / self.rate)) + 1

    def _refilled(self, now_ms: int) -> float:
        # A clock that does not move, or was replaced by another one, neither adds nor takes tokens.
        passed_ms = max(0, now_ms - self._at_ms)
        self._level = min(float(self.rate), self._level + passed_ms * self.rate / 1000)
        self._at_ms = max(self._at_ms, now_ms)

        return self._level


class _Use:
    """The use of its quota by one address or account."""

    __slots__ = ("byte_bucket", "connections", "quota", "request_bucket")

    def __init__(self) -> None:
        self.connections: set[int] = set()
        self.quota = _UNLIMITED
        self.request_bucket: Bucket | None = None
        self.byte_bucket: Bucket | None = None

    def limit(self, quota: Quota, now_ms: int) -> None:
        """Apply *quota* from now on; a bucket whose rate did not change keeps its level."""
        if quota == self.quota:
            return
        if quota.requests_per_s != self.quota.requests_per_s:
            rate = quota.requests_per_s
            self.request_bucket = Bucket(rate, now_ms) if rate else None
        if quota.bytes_per_s != self.quota.bytes_per_s:
            rate = quota.bytes_per_s
            self.byte_bucket = Bucket(rate, now_ms) if rate else None
        self.quota = quota

    def empty(self, is_load: bool, now_ms: int) -> tuple[str, Bucket] | None:
        """Return a quota that is used up, None if a request may be served."""
        requests, size = self.request_bucket, self.byte_bucket
        if requests is not None:
            floor = 0 if is_load else -requests.rate
            if not requests.has_more_than(floor, now_ms):
                return "requestsPerSecond", requests
        # Other requests are small, and a large byte debt must not cost a client its queues.
        if is_load and size is not None and not size.has_more_than(0, now_ms):
            return "bytesPerSecond", size

        return None

    def take(self, request: RemotingCommand) -> None:
        """Count a request."""
        if self.request_bucket is not None:
            self.request_bucket.take(1)
        if self.byte_bucket is not None:
            self.byte_bucket.take(size_of(request))


class Quotas:
    """What addresses and accounts use, and whether they may continue.

    Attributes:
        refused: how many requests were refused, by quota and account; the account is empty for addresses.
    """

    def __init__(self, address_quota: Quota) -> None:
        self._address_quota = address_quota
        self._limits_addresses = address_quota != _UNLIMITED
        self._uses: dict[_Key, _Use] = {}
        self._of_connection: dict[int, set[_Key]] = {}
        # Owners without connections, in the order in which their last connection closed.
        self._idle: dict[_Key, None] = {}
        self.refused: dict[tuple[str, str], int] = {}

    def of_address(self, request: RemotingCommand, caller: Caller, now: Now) -> str:
        """Count a request for its address; return the refusal, empty if it is admitted."""
        if not self._limits_addresses:
            return ""
        network = network_of(caller.host)

        return self._admit(_ADDRESS, network, self._address_quota, request, caller, now)

    def of_account(self, quota: Quota, request: RemotingCommand, caller: Caller, now: Now) -> str:
        """Count a request for the account of *caller*, which has *quota*; return as `of_address`."""
        key = (_ACCOUNT.name, caller.account)
        if quota == _UNLIMITED:
            if key in self._uses:
                self._forget(key)
            return ""

        return self._admit(_ACCOUNT, caller.account, quota, request, caller, now)

    def admits(self, connection: int) -> bool:
        """Return whether *connection* was admitted under its address's limit of connections."""
        return not self._address_quota.connections or connection in self._of_connection

    def handed_out(self, caller: Caller, size: int) -> None:
        """Count bytes of messages that are sent to *caller*."""
        for key in self._of_connection.get(caller.connection, ()):
            if key[0] == _ACCOUNT.name and key[1] != caller.account:
                continue
            bucket = self._uses[key].byte_bucket
            if bucket is not None:
                bucket.take(size)

    def close(self, connection: int) -> None:
        """Drop a closed connection."""
        for key in self._of_connection.pop(connection, ()):
            use = self._uses[key]
            use.connections.discard(connection)
            if not use.connections:
                self._idle[key] = None
        while len(self._idle) > IDLE_MAX:
            longest = next(iter(self._idle))
            del self._idle[longest]
            del self._uses[longest]

    def __len__(self) -> int:
        return len(self._uses)

    # -- parts -------------------------------------------------------------------------------------

    def _admit(
        self,
        kind: _Kind,
        name: str,
        quota: Quota,
        request: RemotingCommand,
        caller: Caller,
        now: Now,
    ) -> str:
        key = (kind.name, name)
        use = self._uses.get(key)
        if use is None:
            use = self._uses[key] = _Use()
        use.limit(quota, now.monotonic_ms)
        if caller.connection not in use.connections:
            if 0 < quota.connections <= len(use.connections):
                text = f"already has {counted(len(use.connections), 'connection')}; close some"
                return self._refuse(kind, name, "connections", quota.connections, text)
            use.connections.add(caller.connection)
            self._of_connection.setdefault(caller.connection, set()).add(key)
            self._idle.pop(key, None)
        empty = use.empty(request.code in LOAD, now.monotonic_ms)
        if empty is not None:
            what, bucket = empty
            text = f"is used up; send less, try again in {bucket.wait_ms(now.monotonic_ms)} ms"
            return self._refuse(kind, name, what, bucket.rate, text)
        use.take(request)

        return ""

    def _refuse(self, kind: _Kind, name: str, quota: str, limit: int, text: str) -> str:
        counted = (quota, name if kind is _ACCOUNT else "")
        if counted not in self.refused and len(self.refused) >= REFUSED_MAX:
            counted = (quota, "")
        self.refused[counted] = self.refused.get(counted, 0) + 1

        return f"the quota {quota} ({limit}) of {kind.name} {name} {text}, or {kind.advice}"

    def _forget(self, key: _Key) -> None:
        self._idle.pop(key, None)
        for connection in self._uses.pop(key).connections:
            keys = self._of_connection[connection]
            keys.discard(key)
            if not keys:
                del self._of_connection[connection]


def owner_of(caller: Caller) -> Owner:
    """Return the account of a sender, or its network if it has none, for limits that all senders share."""
    return caller.account, "" if caller.account else network_of(caller.host)


def size_of(request: RemotingCommand) -> int:
    """Return the approximate size of a request on the wire in bytes, with its header."""
    texts = sum(len(name) + len(value) for name, value in request.ext.items())

    return len(request.body) + texts
