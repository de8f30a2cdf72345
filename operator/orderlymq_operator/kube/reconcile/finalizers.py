"""
The operator's finalizer, on objects whose deletion deletes something in the brokers, and on no others.

Rules: it comes before the brokers are given what the object declares, and never to an object that is refused. It is
removed when the brokers have deleted what the object stands for, when there is no Cluster, from every object of a namespace
that is served no more, and by `--release-finalizers` from every object. When that has not come about for GIVE_UP_S,
because brokers do not answer, clients make it again or a namespace that may declare it cannot be read, a Topic or
ConsumerGroup loses its finalizer, and nobody loses more than room;
an account would stay valid, so a User waits, unless its namespace is being deleted. So does a ConsumerGroup whose members consume.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from typing import Final

from orderlymq_operator.brokers.objectthread import beside_loop
from orderlymq_operator.kube.api import (
    Api,
    ApiError,
    ConflictError,
    ForbiddenError,
    RetryLaterError,
    must_have_read,
)
from orderlymq_operator.kube.fanout import for_each
from orderlymq_operator.kube.objects.names import BACKUP_FINALIZER, FINALIZER
from orderlymq_operator.kube.observe.desired import (
    MESSAGE_MAX,
    OTHER_OWNER,
    DesiredState,
    deletes,
    leaves,
)
from orderlymq_operator.kube.observe.inventory import Inventory, Item, list_each, read_item
from orderlymq_operator.kube.resources import BACKUPS, EVENTS, PARTS, Json
from orderlymq_operator.plan.actions import (
    ConditionReport,
    Lane,
    Observed,
    ObservedNameServer,
    Subject,
)
from orderlymq_operator.resources.kinds import is_deleted_with
from orderlymq_protocol.plurals import counted

_log = logging.getLogger(__name__)

# Longer than an election or the restart of a group; a namespace that is deleted should not wait longer.
GIVE_UP_S: Final = 60.0

_ATTEMPTS: Final = 3

# How the API server refuses what cannot be made in a namespace that is being deleted.
_TERMINATING: Final = "NamespaceTerminating"
_NO_RIGHT: Final = f'cannot create resource "{EVENTS.plural}"'


class Finalizers:
    """Puts finalizers on and takes them off."""

    def __init__(
        self, api: Api, inventory: Inventory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._inventory = inventory
        self._clock = clock
        # By UID, since when this process has seen it wait.
        self._waits_since: dict[str, float] = {}

    async def settle(self, state: DesiredState, observed: Observed) -> set[Subject]:
        """Give every living object that is accepted the finalizer that its deletion policy asks for.

        While brokers are silent nobody knows who is: then nothing is given to the brokers either. Return who has no
        finalizer: nothing may be given to the brokers for those. The verdict says why where it is refused; who has changed
        since it was read gets it next time.
        """
        refused: set[Subject] = set()
        # Nothing is deleted in the brokers for those.
        await for_each(state.unlisted.values(), self.release)
        lacking, surplus = await beside_loop(_changes, state, observed)
        await for_each(surplus, self.release)

        async def hold(subject: Subject) -> None:
            try:
                if not await self.hold(lacking[subject], FINALIZER):
                    refused.add(subject)
            except RetryLaterError:
                raise
            except ApiError as error:
                text = f"its finalizer is refused: {error}"[:MESSAGE_MAX]
                state.verdicts[subject] = ConditionReport("False", error.condition, text)
                refused.add(subject)

        await for_each(lacking, hold)
        return refused

    async def finish(
        self, state: DesiredState, observed: Observed, in_use: Collection[Lane] = ()
    ) -> None:
        """Remove the finalizers of objects whose topics, groups or accounts are gone, or cannot be deleted.

        A ConsumerGroup that is *in_use* waits for its consumers, unless its namespace is being deleted.
        """
        closing: dict[str, bool] = {}
        settled = []
        for item in state.leaving:
            if item.uid not in state.unsure:
                if not deletes(item) or _is_gone(item, state, observed):
                    settled.append(item)
                    continue
                if (item.kind, item.declared) in in_use and not await self._closes(item, closing):
                    self._waits_since.pop(item.uid, None)
                    continue
            if await self._gives_up(item, closing):
                settled.append(item)
        await for_each(settled, self._release_settled)

    async def give_up(self, items: Iterable[Item]) -> float | None:
        """Remove finalizers of a Cluster whose spec cannot be carried out, in time; return when to call again (s), None for never."""
        leaving = [item for item in items if leaves(item)]
        closing: dict[str, bool] = {}
        settled = [
            item for item in leaving if not deletes(item) or await self._gives_up(item, closing)
        ]
        await for_each(settled, self._release_settled)
        return GIVE_UP_S if leaving else None

    async def _release_settled(self, item: Item) -> None:
        if await self.release(item):
            self._waits_since.pop(item.uid, None)

    async def _gives_up(self, item: Item, closing: dict[str, bool]) -> bool:
        """Return whether an object is waited for no more."""
        now = self._clock()
        if now - self._waits_since.setdefault(item.uid, now) <= GIVE_UP_S:
            return False
        if item.kind == "User" and not await self._closes(item, closing):
            return False
        must_have_read()
        _log.warning(
            "the finalizer of %s %s/%s is removed although a broker has it, or could not be asked to delete it, "
            "or another one may declare it",
            *(item.kind, item.namespace, item.name),
        )
        return True

    async def _closes(self, item: Item, known: dict[str, bool]) -> bool:
        """Return whether the namespace of an object is closing; each is asked about once and *known* then."""
        if item.namespace not in known:
            known[item.namespace] = await self.is_closing(item.namespace)
        return known[item.namespace]

    async def is_closing(self, namespace: str) -> bool:
        """Return whether nothing can be made in a namespace any more: it is being deleted, or its Role is gone."""
        probe = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": "orderlymq-probe", "namespace": namespace},
            "involvedObject": {"namespace": namespace},
        }
        try:
            await self._api.create(EVENTS, namespace, probe, dry=True)
        except ForbiddenError as error:
            # A quota and an admission rule answer with 403, too.
            return _TERMINATING in error.causes or _NO_RIGHT in str(error)
        except ApiError:
            return False
        return False

    async def hold(self, item: Item, finalizer: str) -> bool:
        """Put a finalizer on an object; return whether it is on."""
        return finalizer in item.finalizers or await self._write(
            item, [*item.finalizers, finalizer]
        )

    async def release(self, item: Item, finalizer: str = FINALIZER) -> bool:
        """Take a finalizer off an object; return whether it is off.

        A refusal keeps that object, and nothing else, waiting.
        """
        if finalizer not in item.finalizers:
            return True
        try:
            return await self._write(item, [name for name in item.finalizers if name != finalizer])
        except RetryLaterError:
            raise
        except ApiError as error:
            what = (item.kind, item.namespace, item.name)
            _log.error("%s %s/%s keeps its finalizer: %s", *what, error)
            return False

    async def _write(self, item: Item, finalizers: list[str]) -> bool:
        """Write finalizers; return whether that was done, False where the object has changed meanwhile."""
        change: Json = {"metadata": {"finalizers": finalizers, "resourceVersion": item.version}}
        try:
            found = await self._api.patch(item.resource, item.namespace, item.name, change)
        except ConflictError:
            self._inventory.invalidate(item.kind)
            return False
        except ApiError as error:
            if error.status != 404:
                raise
            self._inventory.invalidate(item.kind)
            return len(finalizers) < len(item.finalizers)  # what is gone has none
        if finalizers or item.deleting_since is None:
            self._inventory.written(item.resource, found)
        return True


def _changes(state: DesiredState, observed: Observed) -> tuple[dict[Subject, Item], list[Item]]:
    """Return which living objects lack the finalizer, and which have it for nothing."""
    lacking: dict[Subject, Item] = {}
    surplus: list[Item] = []
    is_known = _all_answer(state, observed)
    for subject, item in state.subjects.items():
        if item.manifest is None or subject in state.unlisted:
            continue
        verdict = state.verdicts.get(subject)
        has = FINALIZER in item.finalizers
        if not is_deleted_with(item.manifest) or (verdict and verdict.reason == OTHER_OWNER):
            if has:
                surplus.append(item)
        elif is_known and verdict is None and not has:
            lacking[subject] = item
    return lacking, surplus


def _all_answer(state: DesiredState, observed: Observed) -> bool:
    groups = [observed.groups.get(name) for name in state.desired.cluster.group_names]
    return all(found is not None and found.topics is not None for found in groups)


def _is_gone(item: Item, state: DesiredState, observed: Observed) -> bool:
    """Return whether every raft group says that it has no such thing, and every name server that it has no list of it."""
    name = item.declared
    wanted = {
        "Topic": state.desired.deleted_topics,
        "ConsumerGroup": state.desired.deleted_consumer_groups,
        "User": state.desired.deleted_users,
    }[item.kind]
    if name not in wanted:
        return True  # another object has taken the name over
    for group in state.desired.cluster.group_names:
        found = observed.groups.get(group)
        table = (
            None
            if found is None
            else {
                "Topic": found.topics,
                "ConsumerGroup": found.consumer_groups,
                "User": found.users,
            }[item.kind]
        )
        if table is None or name in table:
            return False
    if item.kind != "Topic":
        return True
    lists = [
        observed.name_servers.get(index, ObservedNameServer()).order_config
        for index in range(state.desired.cluster.spec.name_servers.replicas)
    ]
    return all(found is not None and name not in found for found in lists)


def age_s(deleting_since: str) -> float:
    """Return how long an object is being deleted, in seconds, by its deletionTimestamp."""
    return (datetime.now(UTC) - datetime.fromisoformat(deleting_since)).total_seconds()


async def release_everything(
    api: Api, namespaces: tuple[str, ...], is_spared: Callable[[str], bool] = lambda _: False
) -> int:
    """Take the finalizer off every object of the kinds that may have it; return how many had it.

    It is done in *namespaces*, in all when empty, but for those of which *is_spared* is true.

    Raises:
        ApiError: nobody answers, or an object keeps its finalizer; try again.
    """
    finalizers = Finalizers(api, Inventory(api, namespaces))
    count = 0
    for resource in (*PARTS, BACKUPS):
        finalizer = BACKUP_FINALIZER if resource == BACKUPS else FINALIZER
        # Once more for what has changed since it was read: an operator that ends writes its last statuses.
        for _ in range(_ATTEMPTS):
            found, unread = await list_each(api, resource, namespaces)
            items = [read_item(resource, each) for each in found]
            held = [
                item
                for item in items
                if finalizer in item.finalizers and not is_spared(item.namespace)
            ]
            done = await asyncio.gather(*(finalizers.release(item, finalizer) for item in held))
            count += sum(done)
            if all(done):
                break
        else:
            text = f"{counted(len(done) - sum(done), resource.kind)} kept the finalizer"
            raise RetryLaterError(text, 0)
        for namespace, error in unread.items():
            _log.warning("no finalizer is removed in namespace %r: %s", namespace, error)
    return count
