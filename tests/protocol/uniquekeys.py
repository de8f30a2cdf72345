"""Take unique keys apart: only tests read what a client writes into them."""

import struct
from ipaddress import ip_address
from typing import NamedTuple


class UniqueKey(NamedTuple):
    """The parts of a unique key; `ms_of_month` counts from the first of the month in which it was made."""

    ip: str
    pid: int
    class_loader_hash: int
    ms_of_month: int
    counter: int


def decode_unique_key(text: str) -> UniqueKey:
    """Return the parts of a unique key."""
    data = bytes.fromhex(text)
    return UniqueKey(str(ip_address(data[:-12])), *struct.unpack(">HIIH", data[-12:]))
