"""
Rotation of an account's secret: two secrets are valid while its clients change from the former to the new one.

The rules: at most two secrets are valid, the account's own and its predecessor. The former secret ends at a time of the
leader's wall clock that is in the log, never later than first set. A record of its own removes it from the state. An
overlap of 0 ends it with the change. Requests name the overlap in a field of our own; without this field, as from
RocketMQ's tools, there is no overlap.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from orderlymq_broker.core.effects import Effect, Now, Propose
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.state.admin.accessrecords import AccountSet, FormerSecretEnded
from orderlymq_protocol.header.extensions import EXT_OVERLAP

# The longest overlap: longer would be no rotation. The field of a User has the same bound.
OVERLAP_S_MAX: Final = 30 * 24 * 3600


class SecretRotation:
    """Ends former secrets; only the leader's instance is used."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next_look_ms = 0

    def tick(self, now: Now) -> list[Effect]:
        """Propose the end of the former secrets that have expired."""
        if now.monotonic_ms < self._next_look_ms:
            return []
        self._next_look_ms = now.monotonic_ms + self._context.settings.timers.scan_ms
        over = [
            FormerSecretEnded(account.access_key, account.former_until_ms)
            for account in self._context.state.access.accounts.values()
            if account.former_secret and account.former_until_ms <= now.wall_ms
        ]

        return [Propose(over)] if over else []


def valid_secrets(account: AccountSet, wall_ms: int) -> tuple[str, ...]:
    """Return the secrets that an account may sign with now, its present one first."""
    if account.former_secret and wall_ms < account.former_until_ms:
        return account.secret_key, account.former_secret

    return (account.secret_key,)


def overlap_seconds(ext: Mapping[str, str]) -> int | None:
    """Return how long the former secret stays valid, or None if the request does not say so.

    Raises:
        ValueError: the value is not a number, or is too large.
    """
    text = ext.get(EXT_OVERLAP)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) > OVERLAP_S_MAX:
        raise ValueError(f"{EXT_OVERLAP} must be a number of seconds from 0 to {OVERLAP_S_MAX}")

    return int(text)


def with_secret(
    account: AccountSet, secret: str, overlap_s: int | None, wall_ms: int
) -> AccountSet:
    """Return an account with its new or present *secret*, and with the former secret until it expires."""
    until_ms = wall_ms + (overlap_s or 0) * 1000
    if secret == account.secret_key:
        former, former_until_ms = account.former_secret, account.former_until_ms
        if overlap_s is not None:
            former_until_ms = min(former_until_ms, until_ms)
    else:
        former, former_until_ms = account.secret_key, until_ms
    if not former or former_until_ms <= wall_ms:
        former, former_until_ms = "", 0

    return msgspec.structs.replace(
        account, secret_key=secret, former_secret=former, former_until_ms=former_until_ms
    )
