"""
Which requests need the signature of the cluster, and whether they have it.

The rule: with a secret of the cluster, everything that changes where clients go is signed by the cluster's own
processes: registrations, write permissions, queue lists of ordered topics, topics that are entered or
deleted, and this server's settings. All that only asks, and other key-value namespaces, is open to everybody.
Without a secret nothing is signed, as with RocketMQ: that is a name server that somebody starts alone, never one
of `orderlymq up` or of the operator. Pure: times are given.
"""

from typing import Final

from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.names import ORDER_NAMESPACE
from orderlymq_protocol.signature import (
    KEY,
    SERVER,
    ReplayGuard,
    SignatureRefused,
    is_signed,
    verified,
)
from orderlymq_runtime.security.clustersecret import NAME_SERVERS

# What RocketMQ's brokers and its tools ask about one broker name; a mixed fleet may leave it unsigned.
OF_ONE_BROKER: Final = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
    }
)
OF_THE_CLUSTER: Final = frozenset(
    {
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    }
)
_KV_CHANGES: Final = frozenset({RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG})


class NotSigned(Exception):  # noqa: N818 - the answer to give
    """The request is refused; the text says what to do."""


class Proofs:
    """Judges signatures of the cluster.

    Args:
        key: what the cluster's processes sign with; None without a secret of the cluster.
        mark: of this start of the name server, for `ReplayGuard`.
        allow_unsigned: RocketMQ's own brokers may register, too.
    """

    def __init__(
        self, key: bytes | None = None, mark: str = "", *, allow_unsigned: bool = False
    ) -> None:
        self._key = key
        self._guard = ReplayGuard(mark)
        self._allow_unsigned = allow_unsigned

    @property
    def needed(self) -> bool:
        """Return whether anything has to be signed here."""
        return self._key is not None

    def judge(self, request: RemotingCommand, wall_ms: int) -> bool:
        """Return whether the cluster has signed this request, which may be served so far.

        What a mixed fleet asks unsigned about one broker name is still to be judged by the name.

        Raises:
            NotSigned: It may not be served.
        """
        if self._key is None:
            return False
        if names_cluster(request):
            try:
                self._guard.take(verified(request, (self._key,)), wall_ms)
            except SignatureRefused as refused:
                raise NotSigned(str(refused)) from refused
            return True
        needs = request.code in OF_THE_CLUSTER or (
            request.code in _KV_CHANGES and request.ext.get("namespace") == ORDER_NAMESPACE
        )
        if needs or (request.code in OF_ONE_BROKER and not self._allow_unsigned):
            raise NotSigned(_what_to_do(request.code))
        return False

    def refusal(self, request: RemotingCommand, reason: NotSigned) -> RemotingCommand:
        """Return the answer, from which a process of the cluster learns what to sign with."""
        ext = {SERVER: self._guard.mark} if self.needed else {}
        return request.reply(ResponseCode.NO_PERMISSION, ext=ext, remark=str(reason))


def names_cluster(request: RemotingCommand) -> bool:
    """Return whether a request says that the cluster has signed it.

    Clients with an account sign what they ask brokers and name servers alike; that counts there alone.
    """
    return is_signed(request.ext) and request.ext.get(KEY) == NAME_SERVERS


def _what_to_do(code: int) -> str:
    if code in (RequestCode.REGISTER_BROKER, RequestCode.BROKER_HEARTBEAT):
        return (
            f"request {code} needs the signature of the cluster; give this broker the cluster's secret, "
            "or set allow_unsigned_registrations at the name servers for RocketMQ's own brokers"
        )
    return (
        f"request {code} changes where clients go and needs the signature of the cluster; change the "
        "Topic or Cluster resource, or use `orderlymq` where `orderlymq up` runs (ORDERLYMQ_DATA_DIR "
        "names its data directory), elsewhere with ORDERLYMQ_CLUSTER_SECRET_FILE"
    )
