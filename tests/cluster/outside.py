"""A broker group with an outside listener at another loopback address, which stands for another network."""

import json
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.processes import Group
from tests.runtime.certificates import make_authority, make_certificate

OUTSIDE = "127.0.0.2"


def listen_outside(directory: Path, replicas: int, *, tls: bool = False, host: str = "") -> Group:
    """Return a group that also listens at OUTSIDE, on the same ports, and publishes its address there.

    With *tls*, its certificate is valid for *host*, too.
    """
    group = Group(directory, replicas)
    listener: dict[str, Any] = {"name": "outside", "host": OUTSIDE, "port": group.port}
    if tls:
        files = make_certificate(make_authority(directory), "outside", host=host)
        listener["tls"] = {
            "mode": "enforcing",
            "certificate": str(files.certificate),
            "key": str(files.key),
        }
    for node in list(group.brokers):
        group.add(node, listeners=[listener])
    path = directory / "name-server.json"
    settings = json.loads(path.read_text())
    settings["listeners"] = [listener | {"port": group.name_server_port}]
    settings["outside_addresses"] = str(directory / "addresses.json")
    path.write_text(json.dumps(settings))
    tell_addresses(group, {"g": f"{OUTSIDE}:{group.port}"})
    return group


def tell_addresses(group: Group, addresses: dict[str, str]) -> None:
    path = group.directory / "addresses.json"
    path.write_text(json.dumps({"outside": addresses}))


def bootstrap(group: Group) -> str:
    return f"{OUTSIDE}:{group.name_server_port}"


def called(group: Group, pid: int) -> set[str]:
    """Return the addresses of the group's client ports to which a process is connected."""
    ports = {group.port, group.port - 2, group.name_server_port}
    return {
        each.raddr.ip
        for each in psutil.Process(pid).net_connections("tcp")
        if each.raddr and each.raddr.port in ports
    }
