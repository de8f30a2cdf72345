"""
Find the pod at the address of a client: the running pods of the console's namespace, by address.

Rules: pods are listed at most once in `EVERY_S`, as the table that `kubectl get pods -o wide` shows, because it is small. A pod of
another namespace, a pod on its node's network, and an address that several pods share are unknown: the console does not guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from orderlymq.errors import OrderlyMQError
from orderlymq_console.apiserver import ApiServer, ApiServerSilent
from orderlymq_console.models import Pod
from orderlymq_protocol.hosts import ip_of

PODS_MAX: Final = 2_000
EVERY_S: Final = 5.0
#: An older list is not used, because another pod may have the address by now.
KEPT_S: Final = 30.0
_SIZE_MAX: Final = 4 * 1024 * 1024
# A listed pod on a node's network may not be the client, because others share its address. Kubernetes leaves such pods out from 1.28 on.
_LIST: Final = (
    "/api/v1/namespaces/{}/pods?fieldSelector=status.phase%3DRunning%2Cspec.hostNetwork%3Dfalse"
    "&includeObject=None&limit={}"
)
_TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"


class PodsUnread(OrderlyMQError):  # noqa: N818 - says what it is
    """The pods cannot be listed now; the text says why."""


@dataclass(frozen=True, slots=True)
class PodList:
    """Names of running pods by address; *is_cut* is true if there are more pods."""

    namespace: str
    names: Mapping[str, tuple[str, ...]]
    is_cut: bool


class Pods:
    """The pods of one namespace."""

    def __init__(self, namespace: str, server: ApiServer) -> None:
        self._namespace = namespace
        self._server = server

    async def read(self) -> PodList:
        """List the running pods.

        Raises:
            PodsUnread: The API server refuses or does not answer.
        """
        path = _LIST.format(self._namespace, PODS_MAX)
        try:
            status, body = await self._server.get(path, size_max=_SIZE_MAX, accept=_TABLE)
        except ApiServerSilent as error:
            raise PodsUnread(str(error)) from error
        if status == 403:
            raise PodsUnread(f"the console may not list the pods of {self._namespace} (403)")
        if status != 200:
            raise PodsUnread(f"the API server refuses to list pods ({status})")
        try:
            table = orjson.loads(body)
            columns = [each["name"] for each in table["columnDefinitions"]]
            name, address = columns.index("Name"), columns.index("IP")
            found: dict[str, tuple[str, ...]] = {}
            for row in table["rows"]:
                place = _normal(str(row["cells"][address]))
                found[place] = (*found.get(place, ()), str(row["cells"][name]))
            is_cut = bool((table.get("metadata") or {}).get("continue"))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise PodsUnread(f"the API server's list of pods cannot be read: {error}") from error
        return PodList(self._namespace, found, is_cut)


@dataclass(frozen=True, slots=True)
class PodNames:
    """The known pods: a list, or the reason why there is none, and its age."""

    listed: PodList | None
    unknown: str
    age_s: float

    def at(self, address: str | None) -> Pod | None:
        """Return the pod at ``host:port``; None if there is no address."""
        if not address:
            return None
        name, unknown = "", self.unknown
        if self.listed is not None:
            names = self.listed.names.get(_normal(address.rpartition(":")[0]), ())
            name = names[0] if len(names) == 1 else ""
            unknown = "" if name else _why(self.listed, len(names))
        return Pod(name=name, unknown=unknown, age_seconds=round(self.age_s, 1))


def _why(listed: PodList, count: int) -> str:
    if count:
        return f"{count} pods have this address"
    if listed.is_cut:
        return f"{listed.namespace} has more than {PODS_MAX:,} pods, and it is not among the first"
    return (
        f"no pod of {listed.namespace} has this address as its own; pods of other namespaces, and pods on the network "
        "of a node, are not listed"
    )


def _normal(host: str) -> str:
    """Return an address in its normal form; return any other text unchanged."""
    return str(ip_of(host.strip("[]")) or host)
