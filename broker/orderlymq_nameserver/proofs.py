"""
Decides which requests need the signature of the cluster, and checks it.

The rule: with a cluster secret, the cluster's own processes sign everything that changes where clients go:
registrations, write permissions, queue lists of ordered topics, topics that are added or deleted, and this
server's settings. Queries and other key-value namespaces are open to every client. Without a secret nothing
is signed, as with RocketMQ: that is a name server that a person starts alone, never one of `orderlymq up` or
of the operator. Pure: the caller gives the time.
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

# Requests of RocketMQ's brokers and tools about one broker name; a mixed fleet may leave them unsigned.
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
    """Checks signatures of the cluster.

    Args:
        key: the key that the cluster's processes sign with; None without a cluster secret.
        mark: identifies this start of the name server, for `ReplayGuard`.
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
        """Return whether some requests must be signed."""
        return self._key is not None

    def judge(self, request: RemotingCommand, wall_ms: int) -> bool:
        """Return whether the cluster has signed this request; it may be served as far as this check decides.

        The caller must still check by name the requests about one broker name that a mixed fleet sends
        unsigned.

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
        """Return the refusal, which tells a process of the cluster what to sign with."""
        ext = {SERVER: self._guard.mark} if self.needed else {}
        return request.reply(ResponseCode.NO_PERMISSION, ext=ext, remark=str(reason))


def names_cluster(request: RemotingCommand) -> bool:
    """Return whether a request claims to be signed by the cluster.

    Clients with an account sign their requests to brokers and to name servers; only brokers use that
    signature.
    """
    return is_signed(request.ext) and request.ext.get(KEY) == NAME_SERVERS


def _what_to_do(code: int) -> str:
    if code in (RequestCode.REGISTER_BROKER, RequestCode.BROKER_HEARTBEAT):
        return (
            f"request {code} needs the signature of the cluster; give this broker the cluster's "
            "secret, or set allow_unsigned_registrations at the name servers to allow RocketMQ's "
            "own brokers"
        )
    return (
        f"request {code} changes where clients go and needs the signature of the cluster; change "
        "the Topic or Cluster resource, or use `orderlymq` on the machine where `orderlymq up` "
        "runs (ORDERLYMQ_DATA_DIR names its data directory), elsewhere with "
        "ORDERLYMQ_CLUSTER_SECRET_FILE"
    )
