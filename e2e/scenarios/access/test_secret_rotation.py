"""The secret of an account changes while its programs send: both secrets are valid for a time.

The status ends the former one, or the user does if no program needs it any more.
"""

import base64

import pytest
import yaml

from e2e.space import Json, Space

# Sends ten messages per second and reports each refusal.
_SENDER = """
import asyncio
from orderlymq import Producer
from orderlymq.errors import OrderlyMQError, SendRefused

async def main():
    async with Producer(name_servers="accounts-nameserver:9876") as producer:
        for number in range(100000):
            try:
                await producer.send("orders", str(number), key="k")
                print("sent", number, flush=True)
            except SendRefused as error:
                print("REFUSED", error, flush=True)
            except OrderlyMQError as error:
                print("unknown", error, flush=True)
            await asyncio.sleep(0.1)

asyncio.run(main())
"""
_SPEC = """
apiVersion: orderlymq.io/v1alpha1
kind: Cluster
metadata: {name: accounts}
spec:
  config: {aclEnable: true}
---
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {name: accounts-orders}
spec:
  clusterRef: {name: accounts}
  topicName: orders
---
apiVersion: orderlymq.io/v1alpha1
kind: User
metadata: {name: shop-app}
spec:
  clusterRef: {name: accounts}
  topics: [{name: orders, permission: PUB}]
"""
MADE = "shop-app-user"


@pytest.mark.timeout(900)
def test_a_secret_changes_under_load_without_a_refused_send(space: Space) -> None:
    """The operator makes the next Secret when the first is deleted; an overlap of 0 ends the former one."""
    space.apply(_SPEC)
    space.ready("cluster/accounts", "topic/accounts-orders", "user/shop-app", timeout_s=240)
    first = _secret(space)
    _start(space, "before")
    space.until(lambda: _sent(space, "before") > 20, "the first program sends", 120)

    space.kubectl("delete", "secret", MADE)
    space.until(lambda: _until(space) != "", "the status says until when", 120)
    assert _secret(space) != first
    _start(space, "after")
    space.until(lambda: _sent(space, "after") > 20, "the second program sends", 120)
    seen = _sent(space, "before")
    space.until(lambda: _sent(space, "before") > seen + 20, "the first one goes on", 120)
    assert [_refused(space, pod) for pod in ("before", "after")] == ["", ""]

    space.patch("user/shop-app", {"secretRotation": {"overlapSeconds": 0}})

    space.until(lambda: "signature" in _refused(space, "before"), "the former secret ends", 120)
    space.until(lambda: _until(space) == "", "the status says so", 120)
    seen = _sent(space, "after")
    space.until(lambda: _sent(space, "after") > seen + 20, "the second one goes on", 120)
    assert _refused(space, "after") == ""


def _start(space: Space, name: str) -> None:
    """Start a program that reads the account's Secret once, as most programs do."""

    def variable(of: str, key: str) -> Json:
        return {"name": of, "valueFrom": {"secretKeyRef": {"name": MADE, "key": key}}}

    container = {
        "name": "sender",
        "image": space.image,
        "command": ["python", "-c", _SENDER],
        "env": [
            variable("ORDERLYMQ_ACCESS_KEY", "accessKey"),
            variable("ORDERLYMQ_SECRET_KEY", "secretKey"),
        ],
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    space.apply(yaml.safe_dump(made))


def _lines(space: Space, pod: str) -> list[str]:
    return space.kubectl("logs", pod).splitlines()


def _sent(space: Space, pod: str) -> int:
    return sum(line.startswith("sent ") for line in _lines(space, pod))


def _refused(space: Space, pod: str) -> str:
    """Return the first refusal, empty if there was none."""
    return next((line for line in _lines(space, pod) if line.startswith("REFUSED")), "")


def _until(space: Space) -> str:
    found: str = space.must("user/shop-app").get("status", {}).get("formerSecretUntil") or ""
    return found


def _secret(space: Space) -> str:
    return base64.b64decode(space.must(f"secret/{MADE}")["data"]["secretKey"]).decode()
