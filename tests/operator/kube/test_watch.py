"""Watches always come back: kopf and HTTP are real, and our own API server ends them in every way."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

from orderlymq_operator.kube import watch as watches
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.resources import SERVICES, TOPICS, Json
from orderlymq_operator.kube.watch import WATCHED, watch
from tests.operator.kube.objectserver import BREAK, END, ObjectServer
from tests.operator.kube.samples import NAMESPACE, custom

pytestmark = pytest.mark.timeout(120)
_LOOK_S = 0.02


@dataclass
class Watched:
    """The objects that watches have shown so far.

    Attributes:
        names: present objects, by kind.
        listed: how often each was shown because a watch began.
        losses: how often all watches were lost.
        ready: set while watches run.
        over: done when the watches have ended.
    """

    server: ObjectServer
    names: dict[str, set[str]] = field(default_factory=dict)
    listed: dict[str, int] = field(default_factory=dict)
    losses: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Task[None] = field(init=False)

    def hint(self, kind: str, found: Json, gone: bool, listed: bool) -> None:
        name, names = found["metadata"]["name"], self.names.setdefault(kind, set())
        (names.discard if gone else names.add)(name)
        self.listed[name] = self.listed.get(name, 0) + listed

    def lost(self) -> None:
        self.losses += 1
        assert not self.ready.is_set()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110 - nothing signals when kopf has opened a watch
            await asyncio.sleep(_LOOK_S)

    async def shows(self, name: str) -> None:
        """Make a Topic, and wait until a watch shows it."""
        self.server.put(TOPICS, custom("Topic", name))
        await self.until(lambda: name in self.names.get("Topic", ()))


def kubeconfig(api: Api, folder: Path) -> Path:
    """Write the configuration by which kopf finds the API server."""
    config = {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": api.host}}],
        "users": [{"name": "test", "user": {}}],
    }
    path = folder / "kubeconfig"
    path.write_bytes(orjson.dumps(config))
    return path


@asynccontextmanager
async def watching(
    server: ObjectServer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    namespaces: tuple[str, ...] = (),
    is_readable: Callable[[str], bool] = lambda _: True,
) -> AsyncIterator[Watched]:
    """Watch all kinds; when the body begins that many watches are open."""
    monkeypatch.setattr(watches, "AGAIN_FIRST_S", 0.05)
    monkeypatch.setattr(watches, "RETRIES_S", (0.05, 0.05))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with server.serving() as api:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(api, folder)))
        seen = Watched(server)
        task = seen.over = asyncio.create_task(
            watch(namespaces, seen.hint, seen.ready, seen.lost, is_readable)
        )
        try:
            await seen.until(lambda: len(server.watches) >= len(WATCHED))
            yield seen
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def compacted(server: ObjectServer, *, within: bool) -> None:
    server.gone_within = within
    server.compact()
    server.tell(END)


ENDINGS: dict[str, tuple[Callable[[ObjectServer], None], bool]] = {
    "the server ends it in good order": (lambda server: server.tell(END), False),
    "the connection breaks": (lambda server: server.tell(BREAK), False),
    "410 within the stream": (lambda server: server.tell(410), False),
    "it is too old, within the stream": (lambda server: compacted(server, within=True), False),
    "it is too old, as an answer": (lambda server: compacted(server, within=False), True),
    "500 within the stream": (lambda server: server.tell(500, TOPICS), True),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_watch_comes_back_however_it_ends(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: however a watch ends, later changes are shown; if kopf gives up, all watches begin again with a list."""
    end, gives_up = ENDINGS[ending]
    async with watching(ObjectServer(), tmp_path, monkeypatch) as seen:
        await seen.shows("before")
        # Like a reconcile under way: kopf ends everything in its loop that is younger than itself.
        other = asyncio.create_task(asyncio.Event().wait())
        end(seen.server)
        await seen.until(lambda: seen.losses == gives_up)
        await seen.until(lambda: seen.listed["before"] >= gives_up)
        await seen.shows("after")
        await seen.ready.wait()

        assert seen.losses == gives_up
        assert not other.done()
        other.cancel()


async def test_a_watch_that_ends_without_a_word_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a watch that is cancelled without a word begins again; kopf alone would go on without it."""
    monkeypatch.setattr(watches, "POLL_S", _LOOK_S)
    async with watching(ObjectServer(), tmp_path, monkeypatch) as seen:
        await seen.shows("before")
        (own,) = (each for each in _tasks() if each.get_name().startswith("watcher for topics"))
        own.get_loop().call_soon_threadsafe(own.cancel)
        await seen.until(lambda: seen.losses == 1)
        await seen.shows("after")
        await seen.ready.wait()

        assert seen.losses == 1


def _tasks() -> list[asyncio.Task[object]]:
    """Return all running tasks of all loops."""
    found = [each for each in gc.get_objects() if isinstance(each, asyncio.Task)]
    return [each for each in found if not each.done()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_watches(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a signal ends the watches, and that is not counted as a loss."""
    async with watching(ObjectServer(), tmp_path, monkeypatch) as seen:
        os.kill(os.getpid(), number)
        await seen.over

        assert seen.losses == 0


async def test_a_watch_that_says_nothing_begins_again_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a silent watch begins again where it was, without a list, and then shows what changed or was deleted meanwhile."""
    monkeypatch.setattr(watches, "SILENT_S", 0.5)
    async with watching(ObjectServer(), tmp_path, monkeypatch) as seen:
        await seen.shows("before")
        seen.server.mute = True
        seen.server.drop(TOPICS, NAMESPACE, "before")
        await seen.until(lambda: seen.names["Topic"] == set())

        assert seen.losses == seen.listed["before"] == 0


async def test_a_namespace_that_cannot_be_watched_ends_no_watch_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a namespace that cannot be watched is lost once, does not delay others,
    and is watched when it can be read again.
    """
    server, readable = ObjectServer(), asyncio.Event()
    server.refused["/apis/orderlymq.io/v1alpha1/namespaces/gone"] = (403, "not granted")
    places = (NAMESPACE, "gone")
    async with watching(
        server, tmp_path, monkeypatch, places, lambda place: place != "gone" or readable.is_set()
    ) as seen:
        await seen.until(lambda: seen.losses == 1)
        await seen.ready.wait()
        await seen.shows("here")

        server.refused.clear()
        readable.set()
        server.put(TOPICS, custom("Topic", "there", namespace="gone"))
        await seen.until(lambda: "there" in seen.names["Topic"])
        assert (seen.losses, seen.listed["here"]) == (1, 0)


async def test_a_bookmark_spares_a_list_after_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: after a compaction a watch of a quiet kind goes on from its last bookmark, without a list."""
    server = ObjectServer()
    server.put(SERVICES, {**custom("Service", "quiet"), "metadata": _LABELLED})
    async with watching(server, tmp_path, monkeypatch) as seen:
        await seen.until(lambda: "quiet" in seen.names.get("Service", ()))
        server.compact()
        server.tell(server.bookmark())
        server.tell(END)
        await seen.shows("after")
        await seen.ready.wait()

        assert seen.listed["quiet"] == 1


_LABELLED = {
    "name": "quiet",
    "namespace": NAMESPACE,
    "labels": {"orderlymq.io/cluster": "demo"},
}


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_ten_thousand_topics_are_shown_although_their_list_grows_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: if the later pages of a list are gone, the list is read again and all watches begin again;
    10,000 topics are shown.
    """
    server, count = ObjectServer(), 10_000
    for number in range(count):
        server.put(TOPICS, custom("Topic", f"topic-{number}"))
    pages = 0

    async def compact_once() -> None:
        nonlocal pages
        pages += any(path.endswith("/topics") for _, path, *_ in server.asked[-1:])
        if pages == 7:
            pages += 1
            server.gone_within = False
            server.compact()

    server.slow = compact_once
    async with watching(server, tmp_path, monkeypatch) as seen:
        await seen.until(lambda: len(seen.names.get("Topic", ())) == count)
        await seen.shows("after")
        await seen.ready.wait()

        assert seen.losses == 1
