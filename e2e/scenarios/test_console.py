"""The console of a Cluster: it has TLS and accounts, names blocked queues, acts, survives a leader, and is removed."""

import functools
import http.client
import http.cookiejar
import itertools
import json
import re
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.runtime.certificates import make_authority, make_certificate

from e2e import guides
from e2e.ingress import PROTOCOL, served
from e2e.installed import Operator
from e2e.machine import MachineError
from e2e.manifests import part, secret
from e2e.person import Person
from e2e.space import Json, Space

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")
BROKERS = "orderlymq.io/cluster=demo,app.kubernetes.io/component=broker"
HOST = "console.example"
TOKEN, LOOKS = "a-random-text-of-alice", "a-random-text-of-the-wallboard"
ACCOUNTS = f"""
[alice]
token = "{TOKEN}"
right = "act"
[wallboard]
token = "{LOOKS}"
"""
KINDS = "deployments,services,ingresses,serviceaccounts,roles,rolebindings"
CAUSE = "no address for this customer"
# One message of four keys cannot be consumed; its queue is blocked.
APPLICATION = f"""
import asyncio
from orderlymq import Consumer, Producer

def listen(messages, context):
    if messages[0].key == "order-2":
        raise ValueError("{CAUSE}")

async def main():
    async with Producer() as producer:
        for number in range(8):
            await producer.send("orders", str(number), key=f"order-{{number % 4}}")
        async with Consumer("billing", topics="orders", ordered=True, consume_from="first", listener=listen):
            await asyncio.sleep(3600)

asyncio.run(main())
"""
# A queue counts as blocked after half a minute, and the leader examines its groups every five seconds.
BLOCKED_S = 120.0


class _Nearby(http.client.HTTPSConnection):
    """A connection to any host name that goes to this machine."""

    def __init__(self, host: str, *, context: ssl.SSLContext, **more: Any) -> None:
        super().__init__(host, context=context, **more)
        self._own = context

    def connect(self) -> None:
        plain = socket.create_connection(("127.0.0.1", self.port), self.timeout)
        self.sock = self._own.wrap_socket(plain, server_hostname=self.host)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._own = context

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_Nearby, context=self._own), request)


class Browser:
    """A user with a browser whose addresses lead to this machine; it keeps cookies and follows redirects."""

    def __init__(self, url: str, authority: Path) -> None:
        self.url = url
        self.cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(
            _Https(ssl.create_default_context(cafile=str(authority))),
            urllib.request.HTTPCookieProcessor(self.cookies),
        )

    def get(self, path: str, **headers: str) -> str:
        """Return a page."""
        request = urllib.request.Request(self.url + path, headers=headers)
        with self._open(request) as answer:
            return str(answer.read().decode())

    def json(self, path: str) -> Json:
        """Return the JSON of a page.

        Raises:
            MachineError: The console does not know it now.
        """
        try:
            return dict(json.loads(self.get(f"/api{path}")))
        except urllib.error.URLError as error:
            raise MachineError(f"{path}: {error}") from error

    def post(self, path: str, origin: str = "", **form: str) -> tuple[str, str]:
        """Send a form, from a page of the console or of another *origin*; return the address and the page that follow."""
        body = urllib.parse.urlencode(form).encode()
        headers = {"Origin": origin or self.url}
        request = urllib.request.Request(self.url + path, body, headers)
        with self._open(request) as answer:
            return str(answer.url).removeprefix(self.url), str(answer.read().decode())

    def follows(self, path: str) -> list[str]:
        """Return the kinds of the first two events of a page, while the console continues to send."""
        with self._open(urllib.request.Request(f"{self.url}/events{path}")) as answer:
            kinds = (line.decode().split()[1] for line in answer if line.startswith(b"event:"))
            return list(itertools.islice(kinds, 2))

    def _open(self, request: urllib.request.Request) -> Any:
        try:
            return self._opener.open(request, timeout=30)
        except urllib.error.HTTPError as error:
            error.close()
            raise


def refused(ask: Callable[[], object]) -> int:
    """Return the status code of a refusal."""
    with pytest.raises(urllib.error.HTTPError) as error:
        ask()
    return error.value.code


@pytest.mark.ci
def test_the_console_of_a_cluster_shows_acts_survives_a_leader_and_goes(
    space: Space, operator: Operator, tmp_path: Path
) -> None:
    """Alice signs in through the Ingress, finds the blocked queue with its cause, and moves the group past it; this is logged.

    Until the queue counts as blocked, a reader types the commands of the guides at the same Cluster.
    """
    person = Person(space, tmp_path)
    authority = _secrets(space, person)
    space.example("quickstart.yaml", _with_tls)
    space.ready(*READY, timeout_s=240)
    before = space.uids(BROKERS)
    space.patch("cluster/demo", {"console": _as_the_guide_says()})
    space.apply(_pipeline(), _application(space.image))
    space.until(lambda: space.get("deployment/demo-console") is not None, "it is made", 60)
    guides.begins(space)
    space.kubectl("rollout", "status", "deployment/demo-console", "--timeout=120s")
    assert _own(space) == {
        kind.removesuffix("s").replace("ingresse", "ingress") for kind in KINDS.split(",")
    }

    with space.forwarded("demo-console", 9870) as port:
        direct = Browser(f"https://localhost:{port}", authority)
        assert refused(lambda: direct.get("/api/overview")) == 401
    with served(space, "demo-console", tmp_path) as port:
        alice = Browser(f"https://{HOST}:{port}", authority)
        _comes_in(alice)
        _sees_the_pipeline(space, alice)
        node = next(each for each in space.workers() if each != space.node("billing"))
        person.words |= guides.instead(space, operator, node)
        guides.looks(space, person)
        guides.changes_a_secret(space, person)
        guides.tries_changes(space, person)
        guides.ends(space, person)
        _finds_the_blocked_queue(space, alice)

        leader = space.leader("demo")
        space.kill(leader)
        space.until(
            lambda: _led_by_another(alice, leader), "the console has found the next leader", 120
        )

        _moves_the_group_past_it(space, alice)

    assert space.uids(BROKERS).keys() == before.keys()
    kept = {name: uid for name, uid in space.uids(BROKERS).items() if name != leader}
    assert kept.items() <= before.items(), "the console restarted a broker"
    space.patch("cluster/demo", {"console": None})
    space.until(lambda: _own(space) == set(), "nothing of it is left", 90)
    space.ready(*READY)
    guides.loses(space, person)


# -- what Alice does


def _comes_in(alice: Browser) -> None:
    """Sign in through a proxy that ends TLS: the host name is checked, the cookie is Secure, and events are live."""
    assert refused(lambda: alice.get("/api/overview")) == 401
    assert refused(lambda: alice.get("/api/overview", Host="evil.example")) == 421
    assert 'name="next" value="/groups?q=b"' in alice.get("/groups?q=b")
    foreign = functools.partial(alice.post, "/sign-in", "https://evil.example", token=TOKEN)
    assert refused(foreign) == 403
    where, page = alice.post("/sign-in", token=TOKEN, next="/groups?q=b")
    assert (where, "alice" in page) == ("/groups?q=b", True)
    (cookie,) = alice.cookies
    kept = (cookie.domain, cookie.secure, cookie.get_nonstandard_attr("SameSite"))
    assert kept == (HOST, True, "Strict")
    assert alice.follows("/overview")[0] == "live"


def _sees_the_pipeline(space: Space, alice: Browser) -> None:
    """Check that the pod's account may only list pipelines and pods."""
    space.until(
        lambda: (
            [(row["name"], row["state"]) for row in alice.json("/pipelines")["rows"]]
            == [("archive", "Suspended")]
        ),
        "the pipeline is listed",
        60,
    )
    account = f"--as=system:serviceaccount:{space.name}:demo-console"
    for verb, what in (("get", "secrets"), ("get", "pods"), ("get", "pipelines.orderlymq.io")):
        assert space.kubectl("auth", "can-i", verb, what, account, check=False).strip() == "no"


def _finds_the_blocked_queue(space: Space, alice: Browser) -> None:
    def blocked() -> bool:
        rows = alice.json("/blocked")["rows"]
        return [(row["group"], row["topic"], row["key"]) for row in rows] == [
            ("billing", "orders", "order-2")
        ] and CAUSE in rows[0]["lastError"]

    space.until(blocked, "the blocked queue is named with its cause", BLOCKED_S)

    def read() -> bool:
        (source,) = alice.json("/overview")["sources"][:1]
        known = (source["name"], source["unknown"]) == ("demo-0", "")
        return known and 0 <= source["ageSeconds"] < 10

    space.until(read, "the broker group was read lately", 60)
    assert "data-events" in alice.get("/blocked")


def _led_by_another(alice: Browser, leader: str) -> bool:
    (group,) = alice.json("/raft")["brokerGroups"]
    # Nodes count from 1, pods from 0.
    return not group["unknown"] and group["leader"] != int(leader.rpartition("-")[2]) + 1


def _moves_the_group_past_it(space: Space, alice: Browser) -> None:
    """Open the preview, confirm it wrongly, then rightly; the audit logs of page and pod have begin and end."""
    where = "/groups/billing/reset?topic=orders&to=latest"

    def answer(name: str) -> int:
        """Return 200 on success, 503 if it is too early after an election, and 409 if the group has gone on meanwhile."""
        try:
            html = alice.get(where)
            assert "What will happen" in html
            form = {
                name: unescape(value)
                for name in ("proof", "stamp", "topic", "to")
                for value in re.findall(rf'name="{name}" value="([^"]*)"', html)[:1]
            }
            alice.post("/groups/billing/reset", **form, confirm=name)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    space.until(lambda: answer("another") == 400, "another name is refused", 60)
    space.until(lambda: answer("billing") == 200, "nothing moved between look and act", 60)
    outcomes = [line["outcome"] for line in alice.json("/audit")["lines"]]
    assert outcomes[-1:] == ["begins"]
    assert any("queues moved" in each for each in outcomes), outcomes
    log = space.kubectl("logs", "deployment/demo-console")
    lines = [json.loads(line)["audit"] for line in log.splitlines() if line.startswith("{")]
    assert {(line["account"], line["action"]) for line in lines} == {("alice", "reset")}
    space.until(lambda: alice.json("/blocked")["rows"] == [], "nothing stands still", BLOCKED_S)


# -- what there is


def _own(space: Space) -> set[str]:
    """Return the kinds of the console's existing objects."""
    found = [each for each in space.items(KINDS) if each["metadata"]["name"] == "demo-console"]
    return {str(each["kind"]).lower() for each in found}


def _as_the_guide_says() -> Json:
    """Return the console of the guide; a proxy connects to it by TLS, because the Cluster has TLS."""
    (cluster,) = [each for each in guides.manifests_of("console") if each["kind"] == "Cluster"]
    console: Json = cluster["spec"]["console"]
    assert console["ingress"]["host"] == HOST
    console["ingress"]["annotations"] = {PROTOCOL: "HTTPS"}
    return console


def _with_tls(made: Json) -> None:
    if made["kind"] == "Cluster":
        made["spec"]["tls"] = {"mode": "Enforcing", "secretName": "demo-tls"}


def _secrets(space: Space, person: Person) -> Path:
    """Make the certificate of the Cluster and, as the guide says, the accounts; return the authority."""
    authority = make_authority(person.folder)
    made = make_certificate(authority, "demo")
    assert made.certificate is not None
    assert made.key is not None
    pair = {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": authority}
    space.apply(secret("demo-tls", {key: path.read_text() for key, path in pair.items()}))
    shown = make_certificate(authority, "console", host=HOST)
    assert shown.certificate is not None
    assert shown.key is not None
    pair = {"tls.crt": shown.certificate, "tls.key": shown.key}
    space.apply(
        secret(
            f"{HOST.replace('.', '-')}-tls", {key: path.read_text() for key, path in pair.items()}
        )
    )
    (person.folder / "accounts.toml").write_text(ACCOUNTS)
    space.kubectl("delete", "secret", "console-accounts", "--ignore-not-found")
    person.types("howto/console", "kubectl create secret")
    return authority


def _object(kind: str, name: str, **more: Json) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **more})


def _pipeline() -> str:
    """Return a Pipeline whose driver needs no image, because none is started."""
    facts = {"source": {"topic": "orders"}, "checkpoint": "archive", "path": "archive"}
    return part("Pipeline", "archive", "demo", type="archive", suspend=True, **facts)


def _application(image: str) -> str:
    facts = {
        "ORDERLYMQ_NAME_SERVER": "demo-nameserver:9876",
        "ORDERLYMQ_TLS": "true",
        "ORDERLYMQ_TLS_CA": "/tls/ca.crt",
        "ORDERLYMQ_TLS_VERIFY_HOST": "false",
    }
    source = {"secretName": "demo-tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    container = {
        "name": "billing",
        "image": image,
        "command": ["python", "-c", APPLICATION],
        "env": [{"name": name, "value": value} for name, value in facts.items()],
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "tls", "secret": source}],
        "terminationGracePeriodSeconds": 0,
    }
    return _object("Pod", "billing", spec=spec)
