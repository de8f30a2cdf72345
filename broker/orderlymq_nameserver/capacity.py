"""
Limits how much of what brokers register a name server keeps, in bytes of its memory.

The rule: a broker that does not sign may be any process, so each such name has a limit, and so have all of
them together. A known broker may always renew what it has, and shrink. The cluster's own brokers sign and are
not counted, so that no other process can use up the room that they need. Pure: sizes are estimated from
measurements, and `routes` stores them.
"""

from collections.abc import Iterable
from sys import getsizeof
from typing import Final

# The largest registration that is accepted: 50,000 topics, with names of 90 characters.
NAME_BYTES_MAX: Final = 16 << 20
# Three broker groups of 50,000 topics. A pod has 256 MiB.
UNSIGNED_BYTES_MAX: Final = 48 << 20

# Connections that keep one address alive: its replicas, at most five, and connections that broke without notice.
SESSIONS_MAX: Final = 16
# Measured: 140 bytes a session, 1,200 for the rest of a name with one address, and 4 KiB for the longest names.
ADDRESS_BYTES: Final = 8 << 10
# Measured: 155 in addition to the name. The table doubles when it grows.
ROW_BYTES: Final = 192


class NotEntered(ValueError):  # noqa: N818 - what becomes of a request, not what failed
    """The request contradicts what is registered, or there is no room; the text says what to do."""


def rows_bytes(names: Iterable[str]) -> int:
    """Return the memory that topics or filter servers with these names take."""
    return sum(ROW_BYTES + getsizeof(name) for name in names)


def check_room(broker_name: str, size: int, others: int) -> None:
    """Check that the registrations of a name may grow to *size* bytes, in addition to *others* of other names.

    Raises:
        NotEntered: They may not.
    """
    if size > NAME_BYTES_MAX:
        raise NotEntered(
            f"TooMuchRegistered: the broker {broker_name} would take {size} bytes of memory, but "
            f"{NAME_BYTES_MAX} are allowed without the secret of the cluster: give the broker the "
            "secret, or divide its topics over several broker groups"
        )
    if size + others > UNSIGNED_BYTES_MAX:
        raise NotEntered(
            f"TooMuchRegistered: the brokers that do not sign would take {size + others} bytes of "
            f"memory, but {UNSIGNED_BYTES_MAX} are allowed: give this broker the secret of the "
            "cluster, stop brokers that are not needed, or use another name server"
        )
