"""Concurrent readers and watches that are early or late: no worker works from old data and then sleeps."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.observe.inventory import Inventory, Item, cluster_of
from orderlymq_operator.kube.resources import CLUSTERS, TOPICS, Json, Resource
from orderlymq_operator.kube.workqueue import WorkQueue
from orderlymq_operator.resources.kinds import Cluster
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import NAMESPACE, custom

_CLUSTERS = 3
_WORKERS = 2
_CHANGES = 12
_TICK_S = 0.001
OTHER = "/apis/orderlymq.io/v1alpha1/namespaces/other"


class Office:
    """An inventory, its queue, and workers that record the versions that they saw; hints come as `app` gives them."""

    def __init__(self, api: Api) -> None:
        self.inventory = Inventory(api, (NAMESPACE,), self.changed)
        self.queue: WorkQueue[tuple[str, str]] = WorkQueue()
        self.seen: dict[tuple[str, str], dict[str, str]] = {}

    def changed(self, item: Item) -> None:
        """Wake the workers of what a list changed."""
        if item.cluster is not None:
            self.queue.add(item.cluster)

    def hint(self, found: Json) -> None:
        """Apply an event of a watch."""
        kind = found["kind"]
        if self.inventory.shown(CLUSTERS if kind == "Cluster" else TOPICS, found, gone=False):
            cluster = cluster_of(kind, found)
            assert cluster is not None
            self.queue.add(cluster)

    async def work(self) -> None:
        """Let workers make passes."""
        while True:
            key = await self.queue.take()
            await self.inventory.refresh(key)
            items = [self.inventory.cluster(key), *self.inventory.parts(key)]
            self.seen[key] = {item.kind: item.version for item in items if item is not None}
            self.queue.done(key)


@pytest.mark.parametrize("seed", range(14))
async def test_the_last_pass_over_each_cluster_sees_its_last_change(seed: int) -> None:
    """Law: the last pass over each Cluster sees its last change, although lists are slow and there is no resync."""
    random, server = Random(seed), ObjectServer()

    async def some_ticks() -> None:
        await asyncio.sleep(random.randrange(4) * _TICK_S)

    server.slow = some_ticks
    hints: set[asyncio.Task[None]] = set()
    async with server.serving() as api:
        office = Office(api)

        async def change() -> None:
            name = f"c{random.randrange(_CLUSTERS)}"
            if random.random() < 0.5:
                made = server.put(
                    CLUSTERS, custom("Cluster", name, labels={"n": str(random.random())})
                )
            else:
                reference = {"clusterRef": {"name": name}}
                topic = custom("Topic", f"t-{name}", labels={"n": str(random.random())})
                made = server.put(TOPICS, {**topic, "spec": reference})

            async def tell() -> None:
                await asyncio.sleep(random.randrange(12) * _TICK_S)
                office.hint(made)

            hints.add(asyncio.create_task(tell()))

        workers = [asyncio.create_task(office.work()) for _ in range(_WORKERS)]
        for _ in range(_CHANGES):
            await change()
            await some_ticks()
        await asyncio.gather(*hints)
        async with asyncio.timeout(30):
            while not office.queue.idle:  # noqa: ASYNC110 - a queue does not signal that it is empty
                await asyncio.sleep(_TICK_S)
        for worker in workers:
            worker.cancel()

    for key, seen in office.seen.items():
        for kind, version in seen.items():
            resource, name = (CLUSTERS, key[1]) if kind == "Cluster" else (TOPICS, f"t-{key[1]}")
            found = server.find(resource, NAMESPACE, name)
            assert found is not None
            assert version == found["metadata"]["resourceVersion"]
    assert sum(map(len, office.seen.values())) == len(server.objects)


async def test_a_caller_that_comes_while_a_list_is_read_waits_for_one_that_is_new_enough() -> None:
    """Law: a caller that comes while a list is read waits for the next one, which has later changes."""
    server, asked, go_on = ObjectServer(), asyncio.Event(), asyncio.Event()
    server.put(CLUSTERS, custom("Cluster", "demo"))
    looks = 0

    async def gate() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:  # The first list has been made and is on its way.
            asked.set()
            await go_on.wait()

    server.slow = gate
    async with server.serving() as api, asyncio.timeout(30):
        inventory = Inventory(api, (NAMESPACE,))
        first = asyncio.create_task(inventory.refresh())
        await asked.wait()
        newer = server.put(CLUSTERS, custom("Cluster", "demo", labels={"n": "1"}))
        inventory.invalidate("Cluster")
        second = asyncio.create_task(inventory.refresh())
        go_on.set()
        await asyncio.gather(first, second)

    found = inventory.cluster((NAMESPACE, "demo"))
    assert found is not None
    assert found.version == newer["metadata"]["resourceVersion"]


async def test_what_is_written_while_a_list_is_read_is_newer_than_the_list() -> None:
    """Law: what is written while a list is read is newer than that list."""
    server = ObjectServer()
    server.put(CLUSTERS, custom("Cluster", "demo"))
    written: list[Json] = []
    looks = 0

    async def gate() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            written.append(server.put(CLUSTERS, custom("Cluster", "demo", labels={"n": "1"})))
            inventory.written(CLUSTERS, written[0])

    server.slow = gate
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        await inventory.refresh()

    found = inventory.cluster((NAMESPACE, "demo"))
    assert found is not None
    assert found.version == written[0]["metadata"]["resourceVersion"]


async def test_what_a_watch_shows_costs_no_list_and_never_replaces_what_is_newer() -> None:
    """Law: an event of a watch costs no list and replaces nothing newer, whether it is a change, an echo, late, or an end."""
    server = ObjectServer()
    first = server.put(TOPICS, custom("Topic", "orders"))
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        await inventory.refresh()
        server.asked.clear()
        second = server.put(TOPICS, custom("Topic", "orders", labels={"n": "2"}))
        third = server.put(TOPICS, custom("Topic", "orders", labels={"n": "3"}))

        news = [inventory.shown(TOPICS, each, gone=False) for each in (third, second, third, first)]
        other = {
            **third,
            "metadata": {**third["metadata"], "uid": "other", "resourceVersion": "90"},
        }
        inventory.shown(TOPICS, other, gone=True)
        versions = [item.version for item in inventory.parts((NAMESPACE, "demo"))]
        end = {**third, "metadata": {**third["metadata"], "resourceVersion": "91"}}
        inventory.shown(TOPICS, end, gone=True)
        read = await inventory.refresh()

    assert news == [True, False, False, False]
    assert versions == [third["metadata"]["resourceVersion"]]
    assert inventory.parts((NAMESPACE, "demo")) == []
    assert (read, server.asked) == (set(), [])


async def test_what_ends_while_a_list_is_read_does_not_come_back_with_it() -> None:
    """Law: an object that ends while a list is read does not return with it."""
    server = ObjectServer()
    made = server.put(TOPICS, custom("Topic", "orders"))
    looks = 0

    async def gate() -> None:
        nonlocal looks
        looks += 1
        if looks == 2 + 2:  # The list of Topics, behind that of Clusters, is on its way.
            server.drop(TOPICS, NAMESPACE, "orders")
            end = {**made, "metadata": {**made["metadata"], "resourceVersion": "9"}}
            inventory.shown(TOPICS, end, gone=True)

    server.slow = gate
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        await inventory.refresh()
        await inventory.refresh()

    assert inventory.parts((NAMESPACE, "demo")) == []


def restore(server: ObjectServer, resource: Resource, found: Json, version: int) -> Json:
    """Restore an object from a snapshot of the API server's store, with its old version."""
    server.put(resource, found)
    place = resource.path(found["metadata"]["namespace"], found["metadata"]["name"])
    meta = {**server.objects[place]["metadata"], "resourceVersion": str(version)}
    server.objects[place] = {**server.objects[place], "metadata": meta}
    return server.objects[place]


@pytest.mark.parametrize("way", ["list", "read"])
async def test_a_store_that_was_restored_is_believed(way: str) -> None:
    """Law: after a restore of the API server's store its objects count, although their versions are smaller.

    Later edits and deletions, and objects deleted after the snapshot, are seen as usual.
    """
    key = (NAMESPACE, "demo")
    server = ObjectServer()
    restore(server, CLUSTERS, custom("Cluster", "demo", spec={"groups": 2}), 900)
    ended = restore(server, CLUSTERS, custom("Cluster", "gone"), 901)
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        await inventory.refresh()
        server.drop(CLUSTERS, NAMESPACE, "gone")
        inventory.shown(CLUSTERS, ended, gone=True)

        async def look(name: str) -> int | None:
            if way == "list":
                inventory.invalidate()
                await inventory.refresh()
            else:
                await inventory.read(CLUSTERS, (NAMESPACE, name))
            found = inventory.cluster((NAMESPACE, name))
            if found is None:
                return None
            assert isinstance(found.manifest, Cluster)
            return found.manifest.spec.groups

        restore(server, CLUSTERS, custom("Cluster", "demo", spec={"groups": 1}), 500)
        restore(server, CLUSTERS, custom("Cluster", "gone", spec={"groups": 3}), 501)
        restored = [await look("demo"), await look("gone")]
        edit = restore(server, CLUSTERS, custom("Cluster", "demo", spec={"groups": 4}), 502)
        is_news = inventory.shown(CLUSTERS, edit, gone=False)
        edit = restore(server, CLUSTERS, custom("Cluster", "gone", spec={"groups": 5}), 503)
        inventory.shown(CLUSTERS, edit, gone=False)
        edited = [await look("demo"), await look("gone")]
        server.drop(CLUSTERS, *key)
        dropped = await look("demo")

    assert restored == [1, 3]
    assert is_news
    assert edited == [4, 5]
    assert dropped is None


async def test_a_cluster_that_is_made_again_is_the_one_that_is_known() -> None:
    """Law: a Cluster that was created again is known, in whatever order watches and answers come."""
    server = ObjectServer()
    former = server.put(CLUSTERS, custom("Cluster", "demo", uid="former"))
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        await inventory.refresh()
        ended = server.drop(CLUSTERS, NAMESPACE, "demo")
        made = server.put(CLUSTERS, custom("Cluster", "demo", uid="present"))

        await inventory.read(CLUSTERS, (NAMESPACE, "demo"))
        inventory.shown(CLUSTERS, ended, gone=True)
        inventory.written(CLUSTERS, former)
        late = inventory.cluster((NAMESPACE, "demo"))
        inventory.shown(CLUSTERS, made, gone=True)  # Some servers send no other version.
        gone = inventory.cluster((NAMESPACE, "demo"))
        server.drop(CLUSTERS, NAMESPACE, "demo")
        server.slow = _showing(inventory, server)
        await inventory.read(CLUSTERS, (NAMESPACE, "demo"))
        shown = inventory.cluster((NAMESPACE, "demo"))

    assert late is not None
    assert late.uid == "present"
    assert gone is None
    assert shown is not None
    assert shown.uid == "third"


def _showing(inventory: Inventory, server: ObjectServer) -> Callable[[], Awaitable[None]]:
    """Return what lets a watch show a new Cluster after an answer was made, before it arrives."""
    calls = 0

    async def slow() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            made = server.put(CLUSTERS, custom("Cluster", "demo", uid="third"))
            inventory.shown(CLUSTERS, made, gone=False)

    return slow


async def test_the_answer_to_a_write_does_not_bring_back_what_has_ended_since() -> None:
    """Law: a write's answer does not bring back an object that has ended since."""
    server = ObjectServer()
    made = server.put(TOPICS, custom("Topic", "orders"))
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        await inventory.refresh()
        end = {**made, "metadata": {**made["metadata"], "resourceVersion": "9"}}
        inventory.shown(TOPICS, end, gone=True)

        inventory.written(TOPICS, made)
        ended = inventory.parts((NAMESPACE, "demo"))
        again = {**made, "metadata": {**made["metadata"], "resourceVersion": "10", "uid": "new"}}
        inventory.shown(TOPICS, again, gone=False)

    assert ended == []
    assert [item.uid for item in inventory.parts((NAMESPACE, "demo"))] == ["new"]


async def test_a_namespace_that_cannot_be_read_holds_no_other_up_and_keeps_what_is_known() -> None:
    """Law: a namespace that cannot be read does not stop others, and what is known of it stays."""
    server = ObjectServer()
    server.put(CLUSTERS, custom("Cluster", "here"))
    server.put(CLUSTERS, custom("Cluster", "there", namespace="other"))
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE, "other"))
        await inventory.refresh()
        server.refused[OTHER] = (403, "not granted")
        server.put(CLUSTERS, custom("Cluster", "new"))
        inventory.invalidate()
        await inventory.refresh()

        assert {item.name for item in inventory.items("Cluster")} == {"here", "there", "new"}
        assert [str(why) for _, why in inventory.unread.values()] == ["not granted"]
        assert not await inventory.can_read_more()

        del server.refused[OTHER]
        server.drop(CLUSTERS, "other", "there")
        assert await inventory.can_read_more()
        inventory.invalidate()
        await inventory.refresh()

        assert {item.name for item in inventory.items("Cluster")} == {"here", "new"}
        assert not inventory.unread


async def test_who_can_read_no_namespace_says_so() -> None:
    """Law: an operator that can read no namespace says so."""
    server = ObjectServer()
    server.refused[OTHER] = (403, "not granted")
    async with server.serving() as api:
        with pytest.raises(ApiError, match="not granted"):
            await Inventory(api, ("other",)).refresh()
