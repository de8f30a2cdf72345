"""Cloud load balancers for a kind cluster: an address for each Service of type LoadBalancer."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from e2e.machine import MachineError
from e2e.space import Space

_EVERY_S: Final = 1.0
_PLACES: Final = 32


@contextmanager
def balanced(space: Space) -> Iterator[IPv4Network]:
    """Give addresses to the Services of *space* during the block; kube-proxy forwards each of them to its pods.

    The addresses are the last of the nodes' network, and this machine routes them to a node.
    """
    node = node_address(space)
    network = IPv4Network(f"{node}/16", strict=False)
    places = IPv4Network(f"{network.broadcast_address - _PLACES + 1}/27")
    lead("replace", places, node)
    ends = threading.Event()
    giver = threading.Thread(target=_give, args=(space, places, ends), name="balancers")
    giver.start()
    try:
        yield places
    finally:
        ends.set()
        giver.join()
        lead("delete", places, node)


def node_address(space: Space) -> IPv4Address:
    """Return the address of a node in the network that this machine shares with the nodes."""
    return IPv4Address(
        next(
            str(address["address"])
            for address in space.items("nodes")[0]["status"]["addresses"]
            if address["type"] == "InternalIP"
        )
    )


def lead(what: str, places: IPv4Network, node: IPv4Address) -> None:
    """Route *places* from this machine to a node (`replace`), or no longer (`delete`)."""
    subprocess.run(["ip", "route", what, str(places), "via", str(node)], check=True)


def _give(space: Space, places: IPv4Network, ends: threading.Event) -> None:
    hosts = list(places.hosts())
    given: list[str] = []
    while not ends.wait(_EVERY_S):
        # An overloaded API server may fail to answer now and then.
        with suppress(MachineError):
            for service in space.items("services"):
                name = str(service["metadata"]["name"])
                if service["spec"]["type"] != "LoadBalancer" or name in given:
                    continue
                ingress = {"ingress": [{"ip": str(hosts[len(given)])}]}
                change = json.dumps({"status": {"loadBalancer": ingress}})
                patch = ("patch", "service", name, "--subresource=status", "--type=merge")
                space.kubectl(*patch, "-p", change)
                given.append(name)
