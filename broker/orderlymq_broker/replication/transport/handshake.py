"""
The handshake in which two replicas prove to each other that they belong to one cluster.

The caller greets with a nonce, and the called replica answers with its own. Then each proves that it knows
the secret of the cluster, with an HMAC-SHA256 over its side, the whole greeting and both nonces. The rule: a
proof covers everything in the greeting, so none of it can be changed, replayed or used for another purpose,
another pair of replicas or the other side. Pure; ``server.py`` transports the frames and acts on nothing
before the proof is checked.
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
# Names that others send are shown in errors and logs, which must stay readable.
_SHOWN_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of this replica for its peers.

    Attributes:
        address: the address at which peers reach it.
        key: the shared secret that both sides prove to know.
        is_certified: whether each replica has a certificate that names it.
    """

    cluster: str
    group: str
    node: NodeId
    address: Address
    key: bytes = field(repr=False)
    is_certified: bool = False

    @classmethod
    def of(cls, settings: BrokerSettings) -> Self:
        """Return the identity from settings; a broker group of one replica without a secret gets a random key."""
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
            names: the URIs; None for a plain connection, which exists only where plain ones are permitted.
        """
        if names is None or not self.is_certified:
            return None
        expected = self.certificate_name(node)
        if {name for name in names if name.startswith(_SCHEME)} == {expected}:
            return None
        return (
            f"its certificate belongs to {shown(', '.join(names)) or 'nobody'}, not to "
            f"{expected}; give each replica the certificate of its own node"
        )


def new_nonce() -> bytes:
    """Return a random number for one handshake."""
    return secrets.token_bytes(NONCE_SIZE)


def proof(key: bytes, side: Side, hello: Hello, nonce: bytes, *, is_recovering: bool) -> bytes:
    """Return the proof of *side*.

    Args:
        key: for the purpose "replicas", derived from the secret of the cluster.
        side: the side that proves itself.
        hello: the greeting of the caller, its nonce included.
        nonce: the nonce of the called side.
        is_recovering: whether the called side recovers its log; False in a proof of the caller.
    """
    said = msgspec.msgpack.encode((side, hello, nonce, is_recovering))

    return hmac.digest(key, said, "sha256")


def is_proof(given: bytes, expected: bytes) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(given, expected)


def shown(text: str) -> str:
    """Return text from another process as one short, printable line."""
    return "".join(each if each.isprintable() else "?" for each in text[:_SHOWN_MAX])
