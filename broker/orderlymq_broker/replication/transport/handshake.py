"""
How two replicas prove to each other that they belong to one cluster.

The caller greets with a nonce, the called answers with one of its own. Then each proves that it knows the secret of the
cluster: an HMAC-SHA256 over its side, the whole greeting and both nonces. The rule: a proof covers everything that the
greeting says, so nothing of it can be changed, replayed or used for another purpose, another pair of
replicas or the other side. Pure; ``server.py`` moves the frames and acts on nothing before the proof was checked.
"""

import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Literal, Self
from urllib.parse import quote

import msgspec

from orderlymq_broker.replication.transport.frameheaders import NONCE_SIZE, Hello
from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_raft.types import NodeId
from orderlymq_runtime.security.clustersecret import derived_key, new_cluster_secret

Side = Literal["caller", "called"]

_SCHEME: Final = "orderlymq://"
# Names of others are shown in errors and logs, which must stay readable.
_SHOWN_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of this replica for its peers.

    Attributes:
        address: where they reach it.
        key: the shared secret that both sides prove to know.
        is_certified: whether a certificate names the replica that shows it.
    """

    cluster: str
    group: str
    node: NodeId
    address: Address
    key: bytes = field(repr=False)
    is_certified: bool = False

    @classmethod
    def of(cls, settings: BrokerSettings) -> Self:
        """Return the identity that settings give; a group of one without a secret has a key that nobody else knows."""
        secret = settings.cluster_secret or new_cluster_secret().encode()
        return cls(
            settings.cluster,
            settings.group,
            NodeId(settings.node_id),
            settings.peers[settings.node_id],
            derived_key(secret, "replicas"),
            is_certified=settings.internal_tls is not None,
        )

    def certificate_name(self, node: NodeId) -> str:
        """Return the URI in the certificate of *node* of this group."""
        return f"{_SCHEME}{quote(self.cluster, safe='')}/{quote(self.group, safe='')}/{node}"

    def certificate_objection(self, node: NodeId, names: Collection[str] | None) -> str | None:
        """Return why *node* cannot have shown a certificate with these URIs, or None.

        Args:
            node: the node that the other end claims to be.
            names: the URIs; None of a plain connection, which only comes about where plain ones are permitted.
        """
        if names is None or not self.is_certified:
            return None
        expected = self.certificate_name(node)
        if {name for name in names if name.startswith(_SCHEME)} == {expected}:
            return None
        return (
            f"its certificate is of {shown(', '.join(names)) or 'nobody'}, not of {expected}; "
            "give each replica the certificate of its own node"
        )


def new_nonce() -> bytes:
    """Return a number that no other handshake has."""
    return secrets.token_bytes(NONCE_SIZE)


def proof(key: bytes, side: Side, hello: Hello, nonce: bytes, *, is_recovering: bool) -> bytes:
    """Return what *side* proves with.

    Args:
        key: of the purpose "replicas", derived from the secret of the cluster.
        side: who proves.
        hello: the greeting of the caller, its nonce included.
        nonce: of the called.
        is_recovering: whether the called side recovers its log; False in a proof of the caller.
    """
    said = msgspec.msgpack.encode((side, hello, nonce, is_recovering))

    return hmac.digest(key, said, "sha256")


def is_proof(given: bytes, expected: bytes) -> bool:
    """Compare in a time that reveals nothing."""
    return hmac.compare_digest(given, expected)


def shown(text: str) -> str:
    """Return what another process said as one short line."""
    return "".join(each if each.isprintable() else "?" for each in text[:_SHOWN_MAX])
