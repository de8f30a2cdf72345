"""Addresses of machines in texts."""

from ipaddress import IPv4Address, IPv6Address, ip_address


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return *host* as an IP address, without the zone of an IPv6 address; None if it is not an address.

    An IPv4 address is returned as IPv4, even if a socket of both families shows it inside an IPv6 address.
    """
    try:
        address = ip_address(host.partition("%")[0] if ":" in host else host)
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def is_loopback(host: str) -> bool:
    """Return whether *host* is this machine, judged by its text alone."""
    address = ip_of(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def network_of(host: str) -> str:
    """Return the network for which an address counts: the address itself, or its /64, because one machine has all of that."""
    if ":" not in host:
        return host
    address = ip_of(host)
    if isinstance(address, IPv6Address):
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return host if address is None else str(address)
