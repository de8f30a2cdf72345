"""The console of a Cluster: it comes with TLS and accounts, names what stands still, acts, outlives a leader, and goes."""

import base64
import http.cookiejar
import json
import re
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path

import pytest
import yaml
from tests.runtime.certificates import make_authority, make_certificate

from e2e import guides
from e2e.installed import Operator
from e2e.machine import MachineError
from e2e.manifests import part
from e2e.person import Person
from e2e.space import Json, Space

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")
BROKERS = "orderlymq.io/cluster=demo,app.kubernetes.io/component=broker"
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
# One message of four keys cannot be consumed; its queue stands still.
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


class Browser:
    """Somebody with a browser in front of a port that is forwarded; keeps cookies and follows redirects."""

    def __init__(self, port: int, authority: Path) -> None:
        self.url = f"https://localhost:{port}"
        context = ssl.create_default_context(cafile=str(authority))
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context),
            urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()),
        )

    def get(self, path: str, **headers: str) -> str:
        """Return a page."""
        request = urllib.request.Request(self.url + path, headers=headers)
        with self._opener.open(request, timeout=30) as answer:
            return str(answer.read().decode())

    def json(self, path: str) -> Json:
        """Return the JSON of a page.

        Raises:
            MachineError: The console cannot tell it now.
        """
        try:
            return dict(json.loads(self.get(f"/api{path}")))
        except urllib.error.URLError as error:
            raise MachineError(f"{path}: {error}") from error

    def post(self, path: str, **form: str) -> str:
        """Send a form and return the page that follows."""
        body = urllib.parse.urlencode(form).encode()
        with self._opener.open(self.url + path, body, timeout=30) as answer:
            return str(answer.read().decode())

    def refused(self, path: str, **headers: str) -> int:
        """Return the status with which a page is refused."""
        try:
            self.get(path, **headers)
        except urllib.error.HTTPError as error:
            return error.code
        raise AssertionError(f"{path} was not refused")


def test_the_console_of_a_cluster_shows_acts_survives_a_leader_and_goes(
    space: Space, operator: Operator, tmp_path: Path
) -> None:
    """Alice signs in through the Service, finds the blocked queue with its cause, moves the group past it; the log has it.

    Until the queue counts as blocked, somebody types at the same Cluster what the guides say.
    """
    person = Person(space, tmp_path)
    authority = _secrets(space, person)
    space.example("quickstart.yaml", _with_tls)
    space.ready(*READY, timeout_s=240)
    before = space.uids(BROKERS)
    ingress = {"host": "console.example", "className": "nginx"}
    accounts = {"secretName": "console-accounts"}
    space.patch(
        "cluster/demo", {"console": {"enabled": True, "accounts": accounts, "ingress": ingress}}
    )
    space.apply(_pipeline(), _application(space.image))
    space.until(lambda: space.get("deployment/demo-console") is not None, "it is made", 60)
    guides.begins(space)
    space.kubectl("rollout", "status", "deployment/demo-console", "--timeout=120s")
    assert _own(space) == {
        kind.removesuffix("s").replace("ingresse", "ingress") for kind in KINDS.split(",")
    }

    with _forwarded(space) as port:
        alice = Browser(port, authority)
        assert alice.refused("/api/overview") == 401
        assert alice.refused("/api/overview", Host="evil.example") == 421
        alice.post("/sign-in", token=TOKEN, next="/")
        assert "alice" in alice.get("/", Host="console.example")
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


def _sees_the_pipeline(space: Space, alice: Browser) -> None:
    """See what the account of its pod may list; it can do nothing else."""
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
    (source,) = alice.json("/overview")["sources"][:1]
    assert (source["name"], source["unknown"]) == ("demo-0", "")
    assert 0 <= source["ageSeconds"] < 10
    assert "data-events" in alice.get("/blocked")


def _led_by_another(alice: Browser, leader: str) -> bool:
    (group,) = alice.json("/raft")["brokerGroups"]
    # Nodes count from 1, pods from 0.
    return not group["unknown"] and group["leader"] != int(leader.rpartition("-")[2]) + 1


def _moves_the_group_past_it(space: Space, alice: Browser) -> None:
    """Look at the preview, confirm it wrongly, then rightly; the audit logs of page and pod have begin and end."""
    where = "/groups/billing/reset?topic=orders&to=latest"

    def confirmed(name: str) -> bool:
        """Tell whether it was done: the group may have gone on elsewhere since the preview, as after a new leader."""
        html = alice.get(where)
        assert "What will happen" in html
        form = {
            name: unescape(value)
            for name in ("proof", "stamp", "topic", "to")
            for value in re.findall(rf'name="{name}" value="([^"]*)"', html)[:1]
        }
        try:
            alice.post("/groups/billing/reset", **form, confirm=name)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
            return False
        return True

    with pytest.raises(urllib.error.HTTPError, match="400"):
        confirmed("another")
    space.until(lambda: confirmed("billing"), "nothing moved between look and act", 60)
    outcomes = [line["outcome"] for line in alice.json("/audit")["lines"]]
    assert outcomes[-1:] == ["begins"]
    assert any("queues moved" in each for each in outcomes), outcomes
    log = space.kubectl("logs", "deployment/demo-console")
    lines = [json.loads(line)["audit"] for line in log.splitlines() if line.startswith("{")]
    assert {(line["account"], line["action"]) for line in lines} == {("alice", "reset")}
    space.until(lambda: alice.json("/blocked")["rows"] == [], "nothing stands still", BLOCKED_S)


# -- what there is


def _own(space: Space) -> set[str]:
    """Return the kinds of what there is of the console."""
    found = [each for each in space.items(KINDS) if each["metadata"]["name"] == "demo-console"]
    return {str(each["kind"]).lower() for each in found}


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
    space.apply(_secret("demo-tls", {key: path.read_text() for key, path in pair.items()}))
    (person.folder / "accounts.toml").write_text(ACCOUNTS)
    space.kubectl("delete", "secret", "console-accounts", "--ignore-not-found")
    person.types("howto/console", "kubectl create secret")
    return authority


def _secret(name: str, texts: dict[str, str]) -> str:
    data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    return _object("Secret", name, data=data)


def _object(kind: str, name: str, **more: Json) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **more})


def _pipeline() -> str:
    """Return a Pipeline whose driver needs no image, because none runs."""
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


@contextmanager
def _forwarded(space: Space) -> Iterator[int]:
    """Forward a port of this machine to the Service, as the guide does."""
    command = ("kubectl", "-n", space.name, "port-forward", "service/demo-console", ":9870")
    with subprocess.Popen(
        command, env=space.machine.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield int(re.findall(r"127\.0\.0\.1:(\d+) ->", line)[0])
        finally:
            process.terminate()
