"""Networks that a Cluster lets in: exactly what the API server accepts."""

import ipaddress

import pytest
from pydantic import ValidationError

from orderlymq_operator.resources.cluster.network import Peer

_NETWORKS = [
    "10.0.0.0/8",
    "10.1.2.3/0",
    "192.168.255.255/32",
    "10.0.0.0/33",
    "256.0.0.0/8",
    "10.0.0/8",
    "10.0.0.0.0/8",
    "01.0.0.0/8",
    "10.0.0.0/",
    "::/0",
    "::1/128",
    "fd00::/8",
    "2001:db8::ff00:42:8329/64",
    "1:2:3:4:5:6:7:8/128",
    "1:2:3:4:5:6:7::/16",
    "::2:3:4:5:6:7:8/16",
    "::/129",
    "1:2:3:4:5:6:7/64",
    "1::2::3/64",
    ":1/64",
    "1:/64",
    "12345::/16",
    "g::/16",
    "fe80::/64/64",
    "10.0.0.0/8\n",
]
# Earlier Kubernetes versions accept them, and so does Python.
_AMBIGUOUS = ["10.0.0.0/08", "010.0.0.0/8", "::ffff:10.0.0.0/104", "fd00::/008"]


@pytest.mark.parametrize("text", _NETWORKS)
def test_a_network_is_taken_by_its_form_alone(text: str) -> None:
    """Law: whatever the schema's pattern accepts is a valid network, so nothing is refused later."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        with pytest.raises(ValidationError, match="write a network such as"):
            Peer(cidr=text)
    else:
        assert Peer(cidr=text).cidr == text


@pytest.mark.parametrize("text", _AMBIGUOUS)
def test_what_can_be_read_in_two_ways_is_refused_in_a_sentence(text: str) -> None:
    """Law: an ambiguous network is refused with a sentence, because Kubernetes 1.36 refuses it in a NetworkPolicy."""
    with pytest.raises(ValidationError, match="without leading zeros and without an IPv4 address"):
        Peer(cidr=text)
