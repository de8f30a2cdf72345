"""Addresses of machines as texts say them."""

from ipaddress import IPv4Address, IPv6Address, ip_address


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that *host* is, one of IPv6 without its zone; None for what is none.

    One of IPv4 comes as such, also where a socket of both families shows it inside one of IPv6.
    """
    try:
        address = ip_address(host.partition("%")[0] if ":" in host else host)
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def is_loopback(host: str) -> bool:
    """Return whether *host* is this machine by its text alone."""
    address = ip_of(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def network_of(host: str) -> str:
    """Return what an address counts for: itself, or its /64, of which one machine has all."""
    if ":" not in host:
        return host
    address = ip_of(host)
    if isinstance(address, IPv6Address):
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return host if address is None else str(address)
