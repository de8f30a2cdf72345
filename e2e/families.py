"""Separate kind clusters whose pods have only IPv6 addresses, or IPv4 and IPv6 addresses."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Literal

from e2e.machine import Machine, say
from e2e.space import Json

Family = Literal["ipv6", "dual"]
NAME: Final = "orderlymq-families"
_SUBNET: Final = "fd00:6:6::/64"
# Pods are connected below, because a node image's own network plugin may know only IPv4.
_SHAPE: Final = """
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
networking: {{ipFamily: {family}, disableDefaultCNI: true, apiServerAddress: 127.0.0.1}}
nodes: [{{role: control-plane}}, {{role: worker}}]
"""
_MADE_S: Final = 300.0
_READY: Final = "--timeout=180s"


@contextmanager
def cluster(machine: Machine, family: Family) -> Iterator[Machine]:
    """Make a cluster from the node image of *machine* for the block, on a Docker network with IPv6."""
    image = machine.run(
        "docker", "inspect", "-f", "{{.Config.Image}}", f"{machine.kind}-control-plane"
    ).strip()
    with tempfile.TemporaryDirectory() as folder:
        own = {
            "KUBECONFIG": f"{folder}/kubeconfig",
            "KIND_EXPERIMENTAL_DOCKER_NETWORK": NAME,
        }
        made = replace(machine, environment={**machine.environment, **own}, kind=NAME)
        _remove(made)
        say(f"making a cluster of the family {family}")
        made.run("docker", "network", "create", "--ipv6", "--subnet", _SUBNET, NAME)
        try:
            create = ("kind", "create", "cluster", "--name", NAME, "--image", image)
            shape = _SHAPE.format(family=family)
            made.run(*create, "--config", "-", stdin=shape, timeout_s=_MADE_S)
            _connect(made)
            yield made
        finally:
            _remove(made)


def _remove(made: Machine) -> None:
    made.run("kind", "delete", "cluster", "--name", NAME, check=False)
    made.run("docker", "network", "rm", NAME, check=False)


def _connect(made: Machine) -> None:
    """Connect the pods of all nodes: each node routes to the pods of every other one."""
    made.run("kubectl", "wait", "node", "--all", "--for=jsonpath={.spec.podCIDRs}", _READY)
    nodes = json.loads(made.run("kubectl", "get", "nodes", "-o", "json"))["items"]
    for node in nodes:
        inside = ("docker", "exec", "-i", node["metadata"]["name"])
        text = json.dumps(_configuration(node["spec"]["podCIDRs"]))
        made.run(*inside, "sh", "-c", "cat > /etc/cni/net.d/10-pods.conflist", stdin=text)
        for other in nodes:
            if other is node:
                continue
            for pods in other["spec"]["podCIDRs"]:
                family = "-6" if ":" in pods else "-4"
                route = ("ip", family, "route", "replace", pods, "via")
                made.run(*inside, *route, _address(other, six=":" in pods))
    made.run("kubectl", "wait", "node", "--all", "--for=condition=Ready", _READY, timeout_s=200)
    names = ("kubectl", "-n", "kube-system", "rollout", "status", "deploy/coredns", _READY)
    made.run(*names, timeout_s=200)


def _address(node: Json, *, six: bool) -> str:
    return next(
        str(each["address"])
        for each in node["status"]["addresses"]
        if each["type"] == "InternalIP" and (":" in each["address"]) is six
    )


def _configuration(networks: Sequence[str]) -> Json:
    """Return the CNI configuration of a node whose pods have addresses in *networks*."""
    everywhere = ["::/0" if ":" in each else "0.0.0.0/0" for each in networks]
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni-ipam-state",
        "ranges": [[{"subnet": each}] for each in networks],
        "routes": [{"dst": each} for each in everywhere],
    }
    return {
        "cniVersion": "0.3.1",
        "name": "pods",
        "plugins": [
            {"type": "ptp", "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
