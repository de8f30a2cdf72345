"""
Measures the operator's requests to a real API server, and their time, with many Topics and foreign pods: ``make bench-operator``.

etcd and kube-apiserver run alone, with the chart's definitions and rights. The brokers of one Cluster are a server that only remembers
topics. The operator is a process of its own; its memory and its own count of requests are read from outside.
"""

import argparse
import asyncio
import json
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import yaml
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from prometheus_client.parser import text_string_to_metric_families
from tests.operator.kube.fakes.brokers import topic_config
from tests.operator.kube.samples import IMAGE, cluster
from tests.operator.scripted import serving
from tests.ports import free_ports

from orderlymq_operator.kube import __main__ as operator
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import kube_revision, name_server_revision
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "charts" / "orderlymq" / "files"
NAMESPACE: Final = "shop"
HOST: Final = "127.0.0.1"
ADMIN, OPERATOR = "admin-token", "operator-token"
SPEC: Final = {
    "replicasPerGroup": 1,
    "nameServers": {"replicas": 1},
    "security": {"internalTls": "Disabled"},
}
READY_MAX_S: Final = 900.0
AT_ONCE: Final = 48
SINCE: Final = "2026-01-01T00:00:00Z"
Json = dict[str, Any]


def say(text: str) -> None:
    """Print a line immediately."""
    print(text, flush=True)


# -- the API server ------------------------------------------------------------------------------


@contextmanager
def api_server(folder: Path, services: str = "10.96.0.0/16") -> Iterator[str]:
    """Run etcd and kube-apiserver from the PATH; yield the address of kube-apiserver.

    *services* is the address range of Services.
    """
    client, peer, port = free_ports(3)
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "sa.key").write_bytes(key)
    (folder / "tokens.csv").write_text(
        f'{ADMIN},admin,1,"system:masters"\n{OPERATOR},operator,2,"operators"\n'
    )
    etcd, urls = f"http://{HOST}:{client}", f"http://{HOST}:{peer}"
    commands = [
        [
            "etcd",
            "--data-dir",
            f"{folder}/etcd",
            "--unsafe-no-fsync",
            "--listen-client-urls",
            etcd,
            "--advertise-client-urls",
            etcd,
            "--listen-peer-urls",
            urls,
            "--initial-advertise-peer-urls",
            urls,
            "--initial-cluster",
            f"default={urls}",
        ],
        [
            "kube-apiserver",
            "--etcd-servers",
            etcd,
            "--bind-address",
            HOST,
            "--secure-port",
            str(port),
            "--cert-dir",
            f"{folder}/certificates",
            "--service-cluster-ip-range",
            services,
            "--authorization-mode",
            "RBAC",
            "--token-auth-file",
            f"{folder}/tokens.csv",
            "--service-account-issuer",
            "https://bench",
            "--service-account-key-file",
            f"{folder}/sa.key",
            "--disable-admission-plugins",
            "ServiceAccount",
            "--service-account-signing-key-file",
            f"{folder}/sa.key",
        ],
    ]
    processes = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        yield f"https://{HOST}:{port}"
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


class Kube:
    """A client of the API server with administrator rights."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self._address = address
        self._session = session

    async def call(self, method: str, path: str, body: Json | None = None, **more: str) -> Json:
        """Make a request with *more* as query parameters."""
        headers = {"Authorization": f"Bearer {ADMIN}"}
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        async with self._session.request(
            method, self._address + path, json=body, params=more, headers=headers
        ) as answer:
            found: Json = await answer.json()
            if answer.status >= 400:
                raise RuntimeError(f"{method} {path}: {found.get('message')}")
            return found

    async def ready(self) -> None:
        """Wait until the API server responds and has created its default roles."""
        for _ in range(600):
            with suppress(aiohttp.ClientError, RuntimeError, ValueError):
                await self.call("GET", "/readyz", verbose="")
            path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin"
            try:
                await self.call("GET", path)
            except (aiohttp.ClientError, RuntimeError, ValueError):
                await asyncio.sleep(0.5)
            else:
                return
        raise RuntimeError("the API server does not become ready")

    async def create_all(self, path: str, made: list[Json]) -> float:
        """Create objects concurrently; return the seconds that this took."""
        gate, begun = asyncio.Semaphore(AT_ONCE), time.monotonic()

        async def create(each: Json) -> None:
            async with gate:
                await self.call("POST", path, each)

        await asyncio.gather(*map(create, made))
        return time.monotonic() - begun


async def install(kube: Kube) -> None:
    """Create the definitions, the namespace, and the operator's rights as in the chart."""
    for path in sorted((CHART / "crds").glob("*.yaml")):
        definition = yaml.safe_load(path.read_text())
        await kube.call(
            "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition
        )
    await kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    rules = [
        rule
        for name in ("namespace", "cluster", "lease")
        for rule in yaml.safe_load((CHART / "rights" / f"{name}.yaml").read_text())
    ]
    root = "/apis/rbac.authorization.k8s.io/v1"
    await kube.call(
        "POST", f"{root}/clusterroles", {"metadata": {"name": "operator"}, "rules": rules}
    )
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "operator"}
    subject = {"kind": "User", "name": "operator", "apiGroup": reference["apiGroup"]}
    binding = {"metadata": {"name": "operator"}, "roleRef": reference, "subjects": [subject]}
    await kube.call("POST", f"{root}/clusterrolebindings", binding)


# -- what the operator meets ---------------------------------------------------------------------


class Brokers:
    """A leader and a name server that store topics and queue lists, and nothing else."""

    def __init__(self) -> None:
        self.topics: dict[str, Json] = {}
        self.lists: dict[str, str] = {}

    def answers(self) -> dict[int, Any]:
        """Return the handler of each request."""
        codes = RequestCode
        return {
            codes.GET_ALL_TOPIC_CONFIG: lambda asked: asked.reply(
                body=json.dumps({"topicConfigTable": self.topics, "dataVersion": {}}).encode()
            ),
            codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda asked: asked.reply(
                body=b'{"subscriptionGroupTable": {}, "dataVersion": {}}'
            ),
            codes.GET_BROKER_CLUSTER_INFO: lambda asked: asked.reply(
                body=json.dumps(
                    {
                        "brokerAddrTable": {
                            "demo-0": {"cluster": "demo", "brokerName": "demo-0", "brokerAddrs": {}}
                        },
                        "clusterAddrTable": {},
                    }
                ).encode()
            ),
            codes.GET_KVLIST_BY_NAMESPACE: lambda asked: asked.reply(
                body=json.dumps({"table": self.lists}).encode()
            ),
            codes.ORDERLYMQ_QUEUE_EXPANSION: lambda asked: asked.reply(body=b'{"topics": []}'),
            codes.UPDATE_AND_CREATE_TOPIC: self._set_topic,
            codes.PUT_KV_CONFIG: self._put_list,
        }

    def _set_topic(self, asked: RemotingCommand) -> RemotingCommand:
        self.topics[asked.ext["topic"]] = topic_config(asked.ext)
        return asked.reply()

    def _put_list(self, asked: RemotingCommand) -> RemotingCommand:
        self.lists[asked.ext["key"]] = asked.ext["value"]
        return asked.reply()


@asynccontextmanager
async def broker_processes(brokers: Brokers) -> AsyncIterator[tuple[int, int]]:
    """Serve the endpoints of a Cluster's pods; yield the ports of the requests and of the pages."""

    async def status(_: web.Request) -> web.Response:
        return web.json_response({"role": "leader", "term": 1, "leader": 1, "voters": [1]})

    pages = web.Application()
    pages.router.add_get("/status", status)
    runner = web.AppRunner(pages, access_log=None)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, HOST, port).start()
    try:
        async with serving(brokers.answers()) as (_, address):
            yield int(address.rpartition(":")[2]), port
    finally:
        await runner.cleanup()


def own_pods() -> list[Json]:
    """Return the pods of the Cluster, which do not really run."""
    made = cluster(**SPEC)
    parts = {
        "demo-0-0": (names.BROKER, kube_revision(made, IMAGE)),
        "demo-nameserver-0": (names.NAME_SERVER, name_server_revision(made, IMAGE)),
    }
    found = []
    for name, (component, revision) in parts.items():
        labels = {names.LABEL_CLUSTER: "demo", "app.kubernetes.io/component": component}
        if component == names.BROKER:
            labels |= {names.LABEL_GROUP: "0", names.LABEL_ROLE: names.LEADER}
        notes = {names.ANNOTATION_REVISION: revision, names.ANNOTATION_TERM: "1"}
        found.append(_pod(name, labels, notes))
    return found


def _pod(name: str, labels: dict[str, str], notes: dict[str, str]) -> Json:
    container = {"name": "broker", "image": IMAGE}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": notes},
        "spec": {"nodeName": "worker", "containers": [container]},
    }


def running(container: str) -> Json:
    """Return the status of a pod that has been ready for a long time."""
    state = {"running": {"startedAt": SINCE}}
    facts = {"name": container, "image": IMAGE, "imageID": "", "ready": True, "restartCount": 0}
    return {
        "status": {
            "phase": "Running",
            "podIP": HOST,
            "podIPs": [{"ip": HOST}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": SINCE}],
            "containerStatuses": [{**facts, "state": state}],
        }
    }


def topic(number: int) -> Json:
    """Return a Topic."""
    return {
        "apiVersion": "orderlymq.io/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": f"topic-{number}"},
        "spec": {"clusterRef": {"name": "demo"}, "queues": 1},
    }


# -- the operator --------------------------------------------------------------------------------


@contextmanager
def operator_process(folder: Path, address: str, ports: tuple[int, int]) -> Iterator[Any]:
    """Run the operator with its own user; yield the process and the address of its metrics."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "bench",
                        "cluster": {"server": address, "insecure-skip-tls-verify": True},
                    }
                ],
                "users": [{"name": "operator", "user": {"token": OPERATOR}}],
                "contexts": [
                    {"name": "bench", "context": {"cluster": "bench", "user": "operator"}}
                ],
                "current-context": "bench",
            }
        )
    )
    (http,) = free_ports(1)
    command = [sys.executable, "-m", "bench.apiload", "--operate", *map(str, ports), str(http)]
    with (folder / "operator.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={"KUBECONFIG": str(kubeconfig), "HOME": "/root"}
        )
    try:
        yield process, f"http://{HOST}:{http}/metrics"
    finally:
        process.terminate()
        process.wait()


def operate(remoting: int, pages: int, http: int) -> int:
    """Run the operator in this process, with the ports at which the pods' endpoints listen here."""
    names.BROKER_PORT = names.NAME_SERVER_PORT = remoting  # type: ignore[misc]
    names.HTTP_PORT = pages  # type: ignore[misc]
    return operator.main(
        [
            "--watch-namespaces",
            "*",
            "--operator-namespace",
            NAMESPACE,
            "--image",
            IMAGE,
            "--http-port",
            str(http),
        ]
    )


async def requests(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Return the number of the operator's requests by verb and resource, without its lease."""
    async with session.get(url) as answer:
        page = await answer.text()
    return {
        f"{sample.labels['verb']} {sample.labels['resource']}": sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "orderlymq_operator_api_requests_total"
        and sample.labels["resource"] != "leases"
    }


async def longest_answer_s(session: aiohttp.ClientSession, url: str, duration_s: float) -> float:
    """Request a page repeatedly; return the longest wait, because no page is served while the loop is busy."""
    longest, until = 0.0, time.monotonic() + duration_s
    while (begun := time.monotonic()) < until:
        async with session.get(url.replace("/metrics", "/healthz")) as answer:
            await answer.read()
        longest = max(longest, time.monotonic() - begun)
        await asyncio.sleep(0.01)
    return longest


def resident_mib(process: subprocess.Popen[bytes]) -> int:
    """Return the operator's resident memory in MiB."""
    return int(psutil.Process(process.pid).memory_info().rss / 2**20)


# -- the measurement -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """The time until all Topics were Ready after the first was created, and the operator's largest measured memory."""

    ready_s: float
    mib: int


def beyond(found: Found, ready_max_s: float | None, mib_max: int | None) -> list[str]:
    """Return a sentence for each limit that *found* exceeds; None means no limit."""
    said = []
    if ready_max_s is not None and found.ready_s > ready_max_s:
        text = f"all Topics were Ready after {found.ready_s:.1f} s, more than {ready_max_s:g} s"
        said.append(text)
    if mib_max is not None and found.mib > mib_max:
        said.append(f"the operator had {found.mib} MiB, more than {mib_max} MiB")
    return said


async def measure(folder: Path, topics: int, pods: int, idle_s: float) -> Found:
    """Run the measurement, print the results, and return the figures that have limits."""
    tls, brokers = ssl.create_default_context(), Brokers()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
        broker_processes(brokers) as ports,
    ):
        with api_server(folder) as address:
            kube = Kube(address, session)
            await kube.ready()
            await install(kube)
            place = f"/api/v1/namespaces/{NAMESPACE}/pods"
            for made in own_pods():
                await kube.call("POST", place, made)
                status = f"{place}/{made['metadata']['name']}/status"
                await kube.call("PATCH", status, running("broker"))
            foreign = [_pod(f"app-{number}", {}, {}) for number in range(pods)]
            took = await kube.create_all("/api/v1/namespaces/default/pods", foreign)
            say(f"{pods:,} foreign pods made in {took:.0f} s")
            own = f"/apis/orderlymq.io/v1alpha1/namespaces/{NAMESPACE}"
            custom = {"apiVersion": "orderlymq.io/v1alpha1", "kind": "Cluster", "spec": SPEC}
            await kube.call("POST", f"{own}/clusters", {**custom, "metadata": {"name": "demo"}})
            with operator_process(folder, address, ports) as (process, metrics):
                await _until_cluster_ready(kube, own, process)
                say(f"Cluster Ready; operator {resident_mib(process)} MiB")
                begun = time.monotonic()
                took = await kube.create_all(f"{own}/topics", [topic(n) for n in range(topics)])
                say(f"{topics:,} Topics made in {took:.0f} s")
                await _until_topics_ready(kube, own, topics)
                ready_s, mib = time.monotonic() - begun, resident_mib(process)
                say(
                    f"all Topics Ready {ready_s:.0f} s after the first was made; operator {mib} MiB"
                )
                say(f"requests by then: {await requests(session, metrics)}")
                await asyncio.sleep(min(20.0, idle_s))
                before = await requests(session, metrics)
                longest_s = await longest_answer_s(session, metrics, idle_s)
                after = await requests(session, metrics)
                made = {
                    name: count - before.get(name, 0)
                    for name, count in after.items()
                    if count != before.get(name, 0)
                }
                say(f"requests in {idle_s:.0f} s of rest, but for the lease: {made or 'none'}")
                say(f"its page answered within {longest_s * 1000:.0f} ms all the time")
                say(f"operator {(last := resident_mib(process))} MiB at the end")
                return Found(ready_s, max(mib, last))


async def _until_cluster_ready(kube: Kube, own: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(240):
        assert process.poll() is None, "the operator has ended: see its log"
        found = await kube.call("GET", f"{own}/clusters/demo")
        told = found.get("status", {}).get("conditions", [])
        ready = next((each for each in told if each["type"] == "Ready"), None)
        if ready and ready["status"] == "True":
            return
        await asyncio.sleep(0.5)
    raise RuntimeError(f"the Cluster does not become Ready: {ready}")


async def _until_topics_ready(kube: Kube, own: str, count: int) -> None:
    begun = time.monotonic()
    while time.monotonic() - begun < READY_MAX_S:
        items = (await kube.call("GET", f"{own}/topics", resourceVersion="0"))["items"]
        ready = sum(
            any(
                each["type"] == "Ready" and each["status"] == "True"
                for each in item.get("status", {}).get("conditions", [])
            )
            for item in items
        )
        if ready >= count:
            return
        await asyncio.sleep(2)
    raise RuntimeError(f"only {ready} of {count} Topics are Ready")


def main() -> int:
    """Read the command line and run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--idle", type=float, default=300.0, help="seconds of rest")
    parser.add_argument("--keep", type=Path, help="folder for logs")
    parser.add_argument("--max-ready", type=float, help="end with 1 if Topics need more seconds")
    parser.add_argument("--max-mib", type=int, help="end with 1 if the operator has more memory")
    parser.add_argument("--operate", nargs=3, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.operate:
        return operate(*given.operate)
    for program in ("etcd", "kube-apiserver"):
        if not shutil.which(program):
            parser.error(f"{program} is not on the PATH")
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(measure(folder, given.topics, given.pods, given.idle))
    said = beyond(found, given.max_ready, given.max_mib)
    for text in said:
        say(text)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
