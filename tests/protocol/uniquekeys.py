"""Unique keys, taken apart: only tests read what a client puts into them."""

import struct
from ipaddress import ip_address
from typing import NamedTuple


class UniqueKey(NamedTuple):
    """The maker of a message and its number; `ms_of_month` counts from the first of the month it was made in."""

    ip: str
    pid: int
    class_loader_hash: int
    ms_of_month: int
    counter: int


def decode_unique_key(text: str) -> UniqueKey:
    """Return the parts of a unique key."""
    data = bytes.fromhex(text)
    return UniqueKey(str(ip_address(data[:-12])), *struct.unpack(">HIIH", data[-12:]))
