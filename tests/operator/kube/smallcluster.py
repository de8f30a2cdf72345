"""A running, Ready Cluster of one replica and one name server: its objects, and processes that answer."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import kube_revision, name_server_revision
from orderlymq_operator.kube.objects.pods import broker_pod, name_server_pod
from orderlymq_operator.kube.observe.credentials import Credentials
from orderlymq_operator.kube.observe.inventory import LAST_APPLIED, Inventory
from orderlymq_operator.kube.reconcile.backend import Defaults
from orderlymq_operator.kube.reconcile.cluster import ClusterReconciler
from orderlymq_operator.kube.reconcile.status import condition_of
from orderlymq_operator.kube.resources import CLAIMS, CLUSTERS, PODS, Json, Resource
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import IMAGE, NAMESPACE, cluster, custom, pod
from tests.operator.scripted import Answer, Scripted, serving

KEY = (NAMESPACE, "demo")
HOST = "127.0.0.1"
DEFAULTS = Defaults(IMAGE, "IfNotPresent")
# Its pods run from the beginning, so they have no certificates.
_SPEC = {
    "replicasPerGroup": 1,
    "nameServers": {"replicas": 1},
    "security": {"internalTls": "Disabled"},
}
_STATUS = {"role": "leader", "term": 1, "leader": 1, "voters": [1]}


@dataclass
class SmallCluster:
    """The Cluster `demo` and its operator.

    Attributes:
        now: seconds of the operator's clock; only tests move it.
        configured: the settings that the broker was asked to change.
        scripted: answers for broker and name server, and keeps the requests.
    """

    server: ObjectServer
    api: Api
    reconciler: ClusterReconciler
    metrics: OperatorMetrics
    now: list[float]
    status: Json
    configured: list[bytes]
    scripted: Scripted

    def serve(self, **facts: Any) -> None:
        """Let the broker's status page say more from now on."""
        self.status.update(facts)

    def shown(self, resource: Resource, found: Json, *, gone: bool) -> bool:
        """Let the operator's watch show an object."""
        return self.reconciler.shown(KEY, {**found, "kind": resource.kind}, gone=gone)

    def annotate(self, **notes: str) -> None:
        """Give the Cluster annotations, as a person would."""
        found = self.server.find(CLUSTERS, *KEY)
        assert found is not None
        named = {f"orderlymq.io/{key}": text for key, text in notes.items()}
        self.server.put(
            CLUSTERS, {**found, "metadata": {**found["metadata"], "annotations": named}}
        )
        self.reconciler.inventory.invalidate()

    def change(self, **spec: Any) -> None:
        """Change fields of the Cluster's spec, as a person does with `kubectl apply`."""
        found = self.server.find(CLUSTERS, *KEY)
        assert found is not None
        made = {"spec": {**found["spec"], **spec}}
        notes = {**found["metadata"].get("annotations", {}), LAST_APPLIED: json.dumps(made)}
        meta = {**found["metadata"], "annotations": notes}
        self.server.put(CLUSTERS, {**found, **made, "metadata": meta})
        self.reconciler.inventory.invalidate()

    def condition(self, kind: str) -> Json:
        """Return one condition of the Cluster."""
        found = self.server.find(CLUSTERS, *KEY)
        assert found is not None
        condition = condition_of(found["status"], kind)
        assert condition is not None
        return condition

    async def lists(self) -> tuple[float | None, int]:
        """Make a pass; return when the next one is due, and how many lists it read."""
        self.server.asked.clear()
        delay_s = await self.reconciler.reconcile(KEY)
        read = [path for method, path, *_ in self.server.asked if method == "GET"]
        single = ("/demo", "-secret", "-identity", "-operator")
        return delay_s, sum(not path.endswith(single) for path in read)


def _own(name: str, component: str, template: Json) -> Json:
    since = "2026-01-01T00:00:00Z"
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": since}
    made = pod(name, podIP=HOST, conditions=[ready])
    made["metadata"]["uid"] = name
    made["spec"] |= template["spec"]
    made["status"]["containerStatuses"][0]["name"] = template["spec"]["containers"][0]["name"]
    notes = template["metadata"]["annotations"]
    made["metadata"]["annotations"] = {
        key: notes[key]
        for key in (
            names.ANNOTATION_REVISION,
            names.ANNOTATION_SCHEME,
            names.ANNOTATION_TLS_MODE,
        )
    }
    made["metadata"]["labels"] = {
        names.LABEL_CLUSTER: "demo",
        "app.kubernetes.io/component": component,
    }
    return made


def _claim(pod_name: str) -> Json:
    labels = {names.LABEL_CLUSTER: "demo"}
    size = {"storage": "20Gi"}
    return {
        "apiVersion": CLAIMS.api_version,
        "kind": CLAIMS.kind,
        "metadata": {"name": f"data-{pod_name}", "namespace": NAMESPACE, "labels": labels},
        "spec": {"resources": {"requests": size}, "storageClassName": "standard"},
        "status": {"phase": "Bound", "capacity": size},
    }


def _says(body: bytes, code: int = ResponseCode.SUCCESS) -> Answer:
    def answer(request: RemotingCommand) -> RemotingCommand:
        return request.reply(code, body=body)

    return answer


_ANSWERS: dict[int, Answer] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: _says(
        b'{"topicConfigTable": {"TBW102": {"topicName": "TBW102", "perm": 7}}, "dataVersion": {}}'
    ),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _says(
        b'{"subscriptionGroupTable": {}, "dataVersion": {}}'
    ),
    RequestCode.ORDERLYMQ_QUEUE_EXPANSION: _says(b'{"topics": []}'),
    RequestCode.UPDATE_AND_CREATE_TOPIC: _says(b""),  # About which its tables never say anything.
    RequestCode.GET_KVLIST_BY_NAMESPACE: _says(b"", ResponseCode.QUERY_NOT_FOUND),
    RequestCode.GET_BROKER_CLUSTER_INFO: _says(
        b'{"brokerAddrTable": {"demo-0": {"cluster": "demo", "brokerName": "demo-0", "brokerAddrs": {}}}, '
        b'"clusterAddrTable": {}}'
    ),
}


@asynccontextmanager
async def small_cluster(
    patch: Callable[[object, str, Any], None],
    namespaces: tuple[str, ...] = (NAMESPACE,),
    defaults: Defaults = DEFAULTS,
    label_of: Callable[[str, str], str | None] = lambda node, key: "",
    **spec: Any,
) -> AsyncIterator[SmallCluster]:
    """Let the Cluster run; *patch* sets its processes' ports, *spec* adds to its spec."""

    told = dict(_STATUS)
    configured: list[bytes] = []

    def configure(request: RemotingCommand) -> RemotingCommand:
        configured.append(bytes(request.body))
        return request.reply()

    async def status(request: web.Request) -> web.Response:
        return web.json_response(told)

    pages = web.Application()
    pages.router.add_get("/status", status)
    server, metrics, now = ObjectServer(), OperatorMetrics(), [0.0]
    made = cluster(**_SPEC, **spec)
    server.put(CLUSTERS, custom("Cluster", "demo", spec={**_SPEC, **spec}))
    form: dict[str, Any] = {"image": IMAGE, "pull_policy": "IfNotPresent"}
    template = broker_pod(made, "demo-0", revision=kube_revision(made, IMAGE), **form)
    broker = _own("demo-0-0", names.BROKER, template)
    broker["metadata"]["labels"] |= {names.LABEL_GROUP: "0", names.LABEL_ROLE: names.LEADER}
    server.put(PODS, broker)
    template = name_server_pod(made, revision=name_server_revision(made, IMAGE), **form)
    server.put(PODS, _own("demo-nameserver-0", names.NAME_SERVER, template))
    for name in ("demo-0-0", "demo-nameserver-0"):
        server.put(CLAIMS, _claim(name))
    async with (
        TestServer(pages, host=HOST) as http,
        serving({**_ANSWERS, RequestCode.UPDATE_BROKER_CONFIG: configure}) as (scripted, remoting),
        server.serving() as api,
    ):
        patch(names, "HTTP_PORT", http.port)
        for port in ("BROKER_PORT", "NAME_SERVER_PORT"):
            patch(names, port, int(remoting.rpartition(":")[2]))
        inventory = Inventory(api, namespaces)
        reconciler = ClusterReconciler(
            api,
            inventory,
            defaults,
            metrics,
            access=Credentials(api, lambda: 1, clock=lambda: now[0]),
            zone_of=lambda address: "",
            label_of=label_of,
            clock=lambda: now[0],
        )
        yield SmallCluster(server, api, reconciler, metrics, now, told, configured, scripted)
        await reconciler.close()
