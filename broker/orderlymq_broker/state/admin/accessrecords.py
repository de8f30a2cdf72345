"""Records of the raft log about accounts, by the rules of ``records.py``."""

from typing import TypeAlias

from msgspec import Struct

from orderlymq_broker.state.integerranges import Long, Natural, Position


class Quota(Struct, frozen=True, array_like=True):
    """How much an account or an address may use of one broker group; 0 is without a limit."""

    requests_per_s: Natural = 0
    bytes_per_s: Position = 0
    connections: Natural = 0


class AccountSet(Struct, frozen=True, array_like=True, tag=60):
    """An account is created or replaced.

    Attributes:
        secret_key: as its holder signs with it; the protocol's signatures need it in the clear.
        default_topic_perm, default_group_perm: DENY, PUB, SUB or PUB|SUB where no other is said.
        white_address: requests from there need no signature; empty for nowhere.
        former_secret: the secret before this one; empty when no rotation is under way.
        former_until_ms: the leader's wall clock when it ends.
    """

    access_key: str
    secret_key: str
    admin: bool = False
    default_topic_perm: str = "DENY"
    default_group_perm: str = "DENY"
    topic_perms: dict[str, str] = {}
    group_perms: dict[str, str] = {}
    white_address: str = ""
    former_secret: str = ""
    former_until_ms: Long = 0
    quota: Quota = Quota()

    def __repr__(self) -> str:
        # A secret must not come into a log by way of a message that shows a record.
        return f"AccountSet({self.access_key!r}, admin={self.admin})"


class AccountDeleted(Struct, frozen=True, array_like=True, tag=61):
    """An account goes."""

    access_key: str


class FormerSecretEnded(Struct, frozen=True, array_like=True, tag=63):
    """The former secret of an account ends, if it is still the one that ends at *until_ms*."""

    access_key: str
    until_ms: Long


class WhiteAddressesSet(Struct, frozen=True, array_like=True, tag=62):
    """Requests from these addresses need no account."""

    addresses: tuple[str, ...]


AccessRecord: TypeAlias = AccountSet | AccountDeleted | FormerSecretEnded | WhiteAddressesSet


class AccessChanged(Struct, frozen=True):
    """The accounts or white addresses changed, or were so already."""

    changed: bool
