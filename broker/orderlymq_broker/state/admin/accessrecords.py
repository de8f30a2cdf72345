"""Records of the raft log about accounts, by the rules of ``records.py``."""

from typing import TypeAlias

from msgspec import Struct

from orderlymq_broker.state.integerranges import Long, Natural, Position


class Quota(Struct, frozen=True, array_like=True):
    """The most that an account or an address may use of one broker group; 0 means no limit."""

    requests_per_s: Natural = 0
    bytes_per_s: Position = 0
    connections: Natural = 0


class AccountSet(Struct, frozen=True, array_like=True, tag=60):
    """An account is created or replaced.

    Attributes:
        secret_key: the secret in plain text, because the protocol's signatures are computed with it.
        default_topic_perm, default_group_perm: DENY, PUB, SUB or PUB|SUB for names without their own permission.
        white_address: requests from there need no signature; empty if there is no such address.
        former_secret: the secret before this one; empty if no rotation is in progress.
        former_until_ms: the time on the leader's wall clock when it ends.
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
        # The secret must not get into a log through a message that shows a record.
        return f"AccountSet({self.access_key!r}, admin={self.admin})"


class AccountDeleted(Struct, frozen=True, array_like=True, tag=61):
    """An account is deleted."""

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
    """The accounts or white addresses changed; *changed* is False if the record made no difference."""

    changed: bool
