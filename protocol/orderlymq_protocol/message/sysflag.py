"""
Bits of the two `sysFlag` numbers: the one stored with a message and the one of a pull request.

Rule: a broker stores and returns the flags of a message unchanged; it sets only the host and transaction
bits itself. `compression` says what the compression bits mean for a body.
"""

from typing import Final

# -- flags of a message
COMPRESSED: Final = 0x1
TRANSACTION_NOT: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC
BORN_HOST_IPV6: Final = 0x10
STORE_HOST_IPV6: Final = 0x20
COMPRESSION_TYPE_MASK: Final = 0x700

_COMPRESSION_TYPE_SHIFT: Final = 8

# -- flags of a pull
PULL_COMMIT_OFFSET: Final = 0x1
PULL_SUSPEND: Final = 0x2
PULL_SUBSCRIPTION: Final = 0x4
PULL_CLASS_FILTER: Final = 0x8
PULL_LITE: Final = 0x10


def transaction_state(sys_flag: int) -> int:
    """Return the transaction bits alone, one of the TRANSACTION_ constants."""
    return sys_flag & TRANSACTION_MASK


def with_transaction_state(sys_flag: int, state: int) -> int:
    """Return *sys_flag* with its transaction bits replaced by *state*."""
    return sys_flag & ~TRANSACTION_MASK | state


def compression_type(sys_flag: int) -> int:
    """Return the three compression type bits as a number; `compression.CompressionType` names them."""
    return (sys_flag & COMPRESSION_TYPE_MASK) >> _COMPRESSION_TYPE_SHIFT


def with_compression(sys_flag: int, type_number: int) -> int:
    """Return *sys_flag* marked as compressed with *type_number* (0 to 7)."""
    cleared = sys_flag & ~COMPRESSION_TYPE_MASK
    return cleared | COMPRESSED | type_number << _COMPRESSION_TYPE_SHIFT


def without_compression(sys_flag: int) -> int:
    """Return *sys_flag* without the compression bits, for the inflated body."""
    return sys_flag & ~(COMPRESSED | COMPRESSION_TYPE_MASK)


def pull_flag(*, commit_offset: bool, suspend: bool, subscription: bool, lite: bool = False) -> int:
    """Return the sysFlag of a pull request."""
    return (
        PULL_COMMIT_OFFSET * commit_offset
        | PULL_SUSPEND * suspend
        | PULL_SUBSCRIPTION * subscription
        | PULL_LITE * lite
    )
