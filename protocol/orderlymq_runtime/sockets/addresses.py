"""Addresses as text: "host:port" joined and split, and the host of a peer as people write it."""

from ipaddress import IPv4Address

from orderlymq_protocol.hosts import ip_of


def split_address(address: str) -> tuple[str, int]:
    """Split "host:port" (or "[v6]:port").

    Raises:
        ValueError: The text has another form.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdigit() and len(port) <= len("65535")
    if not colon or not host or not is_number or int(port) > 65_535:
        raise ValueError(f"{address[:300]!r} is not host:port")
    try:
        host.encode("idna")  # as a look-up does
    except UnicodeError as error:
        raise ValueError(f"{address[:300]!r} is not host:port: {error}") from error
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return "host:port" (or "[v6]:port"), which `split_address` can split."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plain_host(host: str) -> str:
    """Return an IPv4 address in its own form, even if a socket shows it inside an IPv6 address; return any other text unchanged."""
    if not host.startswith("::ffff:"):
        return host
    address = ip_of(host)
    return str(address) if isinstance(address, IPv4Address) else host
