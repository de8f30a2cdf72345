"""
The operator's finalizer, on objects whose deletion deletes something in the brokers, and on no others.

Rules: an object gets the finalizer before brokers get what the object declares; refused objects never get it. The
operator removes it when the brokers have deleted the declared topic, consumer group or user, and when the Cluster does
not exist. It also removes it from every object in a namespace that is no longer served, and with `--release-finalizers`
from every object. The deletion may not complete for GIVE_UP_S, because brokers do not answer, clients create the name
again, or a namespace that may declare it cannot be read. A Topic or ConsumerGroup then loses its finalizer, which only
wastes disk space. A User waits, because its account would stay valid, unless its namespace is being deleted. A
ConsumerGroup whose members consume waits, too.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from typing import Final

from orderlymq_operator.brokers.objectthread import beside_loop
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.cachedstate import must_have_read
from orderlymq_operator.kube.errors import ApiError, ConflictError, ForbiddenError, RetryLaterError
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
    ActionChain,
    ConditionReport,
    Observed,
    ObservedNameServer,
    Subject,
)
from orderlymq_operator.resources.kinds import is_deleted_with
from orderlymq_protocol.plurals import counted

_log = logging.getLogger(__name__)

# Longer than an election or the restart of a raft group. The deletion of a namespace should not wait longer.
GIVE_UP_S: Final = 60.0

_ATTEMPTS: Final = 3

# The cause that the API server names when it refuses to create objects in a namespace that is being deleted.
_TERMINATING: Final = "NamespaceTerminating"
_NO_RIGHT: Final = f'cannot create resource "{EVENTS.plural}"'


class Finalizers:
    """Adds and removes finalizers."""

    def __init__(
        self, api: Api, inventory: Inventory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._inventory = inventory
        self._clock = clock
        # When this process first saw an object wait, by UID.
        self._waits_since: dict[str, float] = {}

    async def settle(self, state: DesiredState, observed: Observed) -> set[Subject]:
        """Add the finalizer to every living, accepted object whose deletion policy requires it; remove it from others.

        While brokers do not answer, it is unknown which objects are accepted, so none gets the finalizer. Return the
        objects that could not get it: the operator must not send them to the brokers. If the finalizer was refused, the
        verdict says why. An object that has changed since it was read gets the finalizer next time.
        """
        refused: set[Subject] = set()
        # The brokers delete nothing for objects in namespaces that the Cluster does not allow.
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
        self, state: DesiredState, observed: Observed, in_use: Collection[ActionChain] = ()
    ) -> None:
        """Remove the finalizers of objects whose topics, consumer groups or accounts are gone or cannot be deleted.

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
        """Remove the finalizers of leaving *items* of a Cluster that cannot be reconciled, after GIVE_UP_S.

        Return when to call again (s); None if no object is leaving.
        """
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
        """Return whether the operator stops waiting for the deletion of an object's declared name."""
        now = self._clock()
        if now - self._waits_since.setdefault(item.uid, now) <= GIVE_UP_S:
            return False
        if item.kind == "User" and not await self._closes(item, closing):
            return False
        must_have_read()
        _log.warning(
            "removed the finalizer of %s %s/%s although a broker still has the object, could not be asked to delete it, or "
            "another object may declare it",
            *(item.kind, item.namespace, item.name),
        )
        return True

    async def _closes(self, item: Item, known: dict[str, bool]) -> bool:
        """Return whether the namespace of an object is closing; *known* caches the answers by namespace."""
        if item.namespace not in known:
            known[item.namespace] = await self.is_closing(item.namespace)
        return known[item.namespace]

    async def is_closing(self, namespace: str) -> bool:
        """Return whether no objects can be created in a namespace: it is being deleted, or its Role is gone."""
        probe = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": "orderlymq-probe", "namespace": namespace},
            "involvedObject": {"namespace": namespace},
        }
        try:
            await self._api.create(EVENTS, namespace, probe, dry=True)
        except ForbiddenError as error:
            # Quotas and admission rules answer with 403, too, so check the reason.
            return _TERMINATING in error.causes or _NO_RIGHT in str(error)
        except ApiError:
            return False
        return False

    async def hold(self, item: Item, finalizer: str) -> bool:
        """Add a finalizer to an object; return whether the object has it."""
        return finalizer in item.finalizers or await self._write(
            item, [*item.finalizers, finalizer]
        )

    async def release(self, item: Item, finalizer: str = FINALIZER) -> bool:
        """Remove a finalizer from an object; return whether it is removed.

        After a refusal only this object waits: the error is logged, not raised.
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
        """Write finalizers; return False if the object has changed meanwhile, or is gone and should get one."""
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
            return len(finalizers) < len(item.finalizers)  # an object that is gone has none
        if finalizers or item.deleting_since is None:
            self._inventory.written(item.resource, found)
        return True


def _changes(state: DesiredState, observed: Observed) -> tuple[dict[Subject, Item], list[Item]]:
    """Return the living objects that lack the finalizer, and those that have it without need."""
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
    """Return whether no raft group has the object's declared name any more, and no name server a queue list for it."""
    name = item.declared
    wanted = {
        "Topic": state.desired.deleted_topics,
        "ConsumerGroup": state.desired.deleted_consumer_groups,
        "User": state.desired.deleted_users,
    }[item.kind]
    if name not in wanted:
        return True  # another object declares the name now
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
    """Return the seconds since the deletion of an object was requested, from its deletionTimestamp."""
    return (datetime.now(UTC) - datetime.fromisoformat(deleting_since)).total_seconds()


async def release_everything(
    api: Api, namespaces: tuple[str, ...], is_spared: Callable[[str], bool] = lambda _: False
) -> int:
    """Remove the finalizer from every object of the kinds that may have it; return how many had it.

    This covers *namespaces* (empty for all), except those for which *is_spared* returns true.

    Raises:
        ApiError: the API server does not answer, or an object keeps its finalizer; try again.
    """
    finalizers = Finalizers(api, Inventory(api, namespaces))
    count = 0
    for resource in (*PARTS, BACKUPS):
        finalizer = BACKUP_FINALIZER if resource == BACKUPS else FINALIZER
        # Repeat for objects that have changed since the read: an operator that is ending may write its last statuses.
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
