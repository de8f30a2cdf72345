"""
The program of `helm test`: create a cluster of one replica, send, consume in order, and remove everything again.

`python selftest.py NAMESPACE NAME TEMPLATE`; the objects are called NAME, and the Cluster's podTemplate is TEMPLATE, in
JSON. The exit code is 0 if every key was consumed in order.
"""

import asyncio
import json
import signal
import socket
import sys
import time
from typing import Any, Final

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from orderlymq import Consumer, OrderedContext, OrderedResult, Producer, ReceivedMessage

_GROUP: Final = "orderlymq.io"
# Brokers reserve topics that are named after their cluster.
_TOPIC: Final = "selftest"
_VERSION: Final = "v1alpha1"
_KEYS: Final = 5
_STEPS: Final = 20
_READY_S: Final = 150
# DNS remembers for a while that a name is missing if it was asked for too early.
_NAMED_S: Final = 60
# The node may still be busy with the installation; a repeated send stores only one message.
_SENT_S: Final = 30
_CONSUMED_S: Final = 60


def objects(name: str, template: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the custom resources by plural, in the order in which they are created."""
    specs: list[tuple[str, str, dict[str, Any]]] = [
        (
            "clusters",
            "Cluster",
            {
                "replicasPerGroup": 1,
                "nameServers": {"replicas": 1},
                "storage": {"size": "1Gi", "deleteClaim": "Delete"},
                "podTemplate": template,
            },
        ),
        (
            "topics",
            "Topic",
            {
                "clusterRef": {"name": name},
                "topicName": _TOPIC,
                "queues": 4,
                "deletionPolicy": "Retain",
            },
        ),
        ("consumergroups", "ConsumerGroup", {"clusterRef": {"name": name}}),
    ]
    return [
        (
            plural,
            {
                "apiVersion": f"{_GROUP}/{_VERSION}",
                "kind": kind,
                "metadata": {"name": name},
                "spec": spec,
            },
        )
        for plural, kind, spec in specs
    ]


def _wait_until_ready(
    api: client.CustomObjectsApi, namespace: str, name: str, plurals: list[str]
) -> None:
    until = time.monotonic() + _READY_S
    for plural in plurals:
        while True:
            ready = _ready(api, namespace, plural, name)
            if ready.get("status") == "True":
                print(f"{plural}/{name} is ready", flush=True)
                break
            if time.monotonic() > until:
                raise SystemExit(f"{plural}/{name} is not ready: {ready}")
            time.sleep(1)


def _ready(api: client.CustomObjectsApi, namespace: str, plural: str, name: str) -> dict[str, Any]:
    """Return the condition Ready of an object, or why it cannot be read now: an API server may be overloaded for a while."""
    try:
        found = api.get_namespaced_custom_object(_GROUP, _VERSION, namespace, plural, name)
    except (client.ApiException, HTTPError) as error:
        return {"message": f"it cannot be read: {error}"}
    conditions = found.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == "Ready"), {})


def _wait_until_named(host: str) -> None:
    until = time.monotonic() + _NAMED_S
    while True:
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            if time.monotonic() > until:
                raise SystemExit(f"{host} has no address: {error}") from None
            time.sleep(1)
        else:
            return


def _told_to_end(signum: int, frame: object) -> None:
    raise SystemExit("ended by a signal before the test was over")


def in_order(seen: dict[str, int], key: str, step: int) -> bool:
    """Return whether a message is in order; *seen* counts the steps of each key.

    A repeated message is in order, because delivery is at least once.
    """
    if step == seen.get(key, 0):
        seen[key] = step + 1
    return step < seen.get(key, 0)


async def _send_and_consume(servers: str, name: str) -> None:
    seen: dict[str, int] = {}
    early: list[str] = []
    complete = asyncio.Event()

    async def listener(messages: list[ReceivedMessage], context: OrderedContext) -> OrderedResult:
        early.extend(
            f"{message.text} of {message.key}"
            for message in messages
            if not in_order(seen, str(message.key), int(message.text))
        )
        if early or sum(seen.values()) == _KEYS * _STEPS:
            complete.set()
        return OrderedResult.SUCCESS

    async with Producer("selftest", servers) as producer:
        for step in range(_STEPS):
            for key in range(_KEYS):
                await producer.send(_TOPIC, str(step), key=f"key-{key}", timeout=_SENT_S)
    async with Consumer(
        name, servers, topics=_TOPIC, ordered=True, consume_from="first", listener=listener
    ):
        async with asyncio.timeout(_CONSUMED_S):
            await complete.wait()
    if early:
        raise SystemExit(f"the order is broken: {early} came too early, behind {seen} by key")
    print(f"{_KEYS * _STEPS} messages of {_KEYS} keys came in order", flush=True)


def main() -> None:
    """Run the test; always remove the objects that it made."""
    namespace, name, template = sys.argv[1:4]
    made = objects(name, json.loads(template))
    plurals = [plural for plural, _ in made]
    signal.signal(signal.SIGTERM, _told_to_end)
    config.load_incluster_config()
    api = client.CustomObjectsApi()
    try:
        for plural, manifest in made:
            api.create_namespaced_custom_object(_GROUP, _VERSION, namespace, plural, manifest)
        _wait_until_ready(api, namespace, name, plurals)
        host = f"{name}-nameserver.{namespace}.svc"
        _wait_until_named(host)
        asyncio.run(_send_and_consume(f"{host}:9876", name))
    finally:
        for plural in reversed(plurals):
            try:
                api.delete_namespaced_custom_object(_GROUP, _VERSION, namespace, plural, name)
            except client.ApiException as error:
                print(f"{plural}/{name} is left: {error.reason}", flush=True)


if __name__ == "__main__":
    main()
