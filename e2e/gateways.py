"""
A gateway for a cluster without one: it serves the TLSRoutes of a namespace, as a Gateway API controller does.

It listens on this machine, chooses the route by the server name in a client's TLS greeting, forwards the encrypted
bytes to the Service of the route, and reports in the status of each route that it accepted it.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from ipaddress import IPv4Network
from typing import Final

from tests.cluster.sniproxy import gateway

from e2e.balancers import lead, node_address
from e2e.machine import ROOT, MachineError
from e2e.space import Json, Space

_DEFINITION: Final = ROOT / "tests" / "operator" / "kube" / "objects" / "tlsroutes.yaml"
_CONTROLLER: Final = "orderlymq.io/e2e"
_EVERY_S: Final = 1.0


@contextmanager
def served(space: Space) -> Iterator[int]:
    """Serve the TLSRoutes of *space* during the block; yield the gateway's port on this machine."""
    space.kubectl("apply", "--server-side", "-f", str(_DEFINITION))
    space.kubectl("wait", "--for=condition=Established", f"-f={_DEFINITION}", "--timeout=30s")
    taken: dict[str, tuple[str, int]] = {}
    port: Future[int] = Future()
    ends = threading.Event()

    async def serve() -> None:
        async with gateway(taken) as made:
            port.set_result(made.port)
            while not await asyncio.to_thread(ends.wait, _EVERY_S):
                # An overloaded API server may fail to answer now and then.
                with suppress(MachineError):
                    await asyncio.to_thread(_take_up, space, taken)

    server = threading.Thread(target=lambda: asyncio.run(serve()), name="gateway")
    server.start()
    try:
        yield port.result(timeout=10)
    finally:
        ends.set()
        server.join()
        for address, _ in set(taken.values()):
            lead("delete", IPv4Network(address), node_address(space))
        # A second try makes it again, and must not find the one that is still being deleted.
        space.kubectl("delete", "-f", str(_DEFINITION), "--timeout=60s")


def _take_up(space: Space, taken: dict[str, tuple[str, int]]) -> None:
    for route in space.items("tlsroutes"):
        (backend,) = route["spec"]["rules"][0]["backendRefs"]
        service = space.get(f"service/{backend['name']}")
        if service is None:
            continue
        address = str(service["spec"]["clusterIP"])
        for host in route["spec"]["hostnames"]:
            if host not in taken:
                # kube-proxy on any node forwards callers to the pods of a Service.
                lead("replace", IPv4Network(address), node_address(space))
                taken[host] = (address, int(backend["port"]))
        if "status" not in route:
            space.kubectl(
                *("patch", "tlsroute", str(route["metadata"]["name"]), "--subresource=status"),
                *("--type=merge", "-p", json.dumps({"status": _accepted(route)})),
            )


def _accepted(route: Json) -> Json:
    facts = {
        "status": "True",
        "message": "",
        "observedGeneration": route["metadata"]["generation"],
        "lastTransitionTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    conditions = [
        {"type": "Accepted", "reason": "Accepted", **facts},
        {"type": "ResolvedRefs", "reason": "ResolvedRefs", **facts},
    ]
    (parent,) = route["spec"]["parentRefs"]
    return {
        "parents": [{"parentRef": parent, "controllerName": _CONTROLLER, "conditions": conditions}]
    }
