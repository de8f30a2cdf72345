"""A local cluster whose manifests an earlier version accepted and this one refuses."""

import asyncio
import re
from dataclasses import replace

import pytest

from orderlymq_operator.local import session
from orderlymq_operator.local.directory import DataDirectory, State
from orderlymq_operator.local.errors import RefusedError
from orderlymq_operator.local.progress import summary
from orderlymq_operator.local.supervisor import Supervisor
from orderlymq_operator.resources.manifests.combination import combine
from orderlymq_operator.resources.manifests.reader import parse
from tests.operator.local.manifests import normal_topic, text
from tests.operator.local.supervision import change_shared, running, shared_of, until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("stub_brokers"),
    pytest.mark.timeout(60),
]
BAD_LANES = """
---
apiVersion: orderlymq.io/v1alpha1
kind: ConsumerGroup
metadata: {name: lanes}
spec: {clusterRef: {name: demo}, concurrency: Key, laneKeyProperty: "a\\x01b"}
"""


def own_topic(name: str, *, called: str = "own", queues: int = 1) -> str:
    """Return another document: a topic whose name is reserved by brokers."""
    return f"""
---
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {{name: {called}}}
spec:
  clusterRef: {{name: demo}}
  topicName: "{name}"
  type: Normal
  queues: {queues}
  deletionPolicy: Delete
"""


@pytest.mark.parametrize(
    "name", ["%DLQ%billing", "%RETRY%billing", "TBW102", "demo", "demo-0", "demo_REPLY_TOPIC"]
)
def test_what_an_earlier_version_accepted_keeps_no_cluster_from_its_start(
    directory: DataDirectory, ports: int, name: str
) -> None:
    """Law: a Topic that only this version refuses stays as it is and the cluster starts; new or changed ones are refused."""
    old = parse(text(ports, extra=own_topic(name)), "test.yaml")
    lanes = parse(text(ports, extra=own_topic(name) + BAD_LANES), "test.yaml")
    stored = combine(lanes, None)
    directory.create()
    directory.save(State(stored))

    for found in ([], old, lanes):
        with session.prepared(directory, found) as state:
            assert state.desired == stored
    changed = parse(text(ports, extra=own_topic(name, queues=2)), "test.yaml")
    more = parse(text(ports, extra=own_topic("SELF_TEST_TOPIC", called="more")), "test.yaml")
    for found, why in ((changed, name), (more, "SELF_TEST_TOPIC")):
        with (
            pytest.raises(RefusedError, match=f"brokers reserve the name '{why}'"),
            session.prepared(directory, found),
        ):
            pass


async def test_what_an_earlier_version_accepted_is_left_alone_until_it_is_pruned(
    directory: DataDirectory, ports: int
) -> None:
    """Law: such a Topic does not stop other changes and is reported with the reason.

    When it is pruned, the brokers' own topic stays.
    """
    plain = text(ports, replicas=1)
    async with running(directory, ports, replicas=1):
        pass
    state = directory.load()
    assert state is not None
    letters = {**shared_of(directory)["topics"]["orders"], "order": False}
    change_shared(directory, lambda shared: shared["topics"].update({"%DLQ%billing": letters}))
    old = plain + own_topic("%DLQ%billing") + BAD_LANES
    directory.save(replace(state, desired=combine(parse(old, "test.yaml"), None)))
    with session.prepared(directory, []) as state:
        supervisor = Supervisor(directory, state)
        task = asyncio.create_task(supervisor.run())
        try:

            def reasons() -> dict[str, str]:
                return {item["name"]: item["reason"] for item in supervisor.snapshot()["resources"]}

            await until(lambda: supervisor.settled)
            begun = summary(supervisor.snapshot())
            refused = {name for name, why in reasons().items() if why == "ResourceConflict"}
            more = parse(old + normal_topic(4), "test.yaml")
            said = await supervisor.forecast(more, prune=False)
            await supervisor.apply(more, prune=False)
            await until(lambda: supervisor.settled)
            assert "clicks" in shared_of(directory)["topics"]
            await supervisor.apply(parse(plain, "test.yaml"), prune=True)
            await until(lambda: supervisor.settled)
        finally:
            supervisor.stop()
            await task

    assert refused == {"own", "lanes"}
    assert re.findall(r"unchanged: (\w+ '\w+'), ", begun) == [
        "ConsumerGroup 'lanes'",
        "Topic 'own'",
    ]
    assert said.refusals == ()
    assert [each.subject.name for each in said.resources if each.effects] == ["clicks"]
    assert "%DLQ%billing" in shared_of(directory)["topics"]
