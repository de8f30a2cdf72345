"""
Connections to brokers and the secrets of Users: signatures and certificates by Cluster.

Rules: secrets of Users are read when a reconcile begins and never cached. A Cluster has two secrets of its own: its
processes identify each other by one, and the operator signs with the other. Both are made once and never change. They
are in Secrets of the Cluster, which the operator reads twice an hour. A deleted Secret is made again with the same
content. A changed Secret is ignored. The operator never makes a different secret while processes run, because they have
read the first one.
"""

import asyncio
import base64
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar, Final

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.brokers.status import PageAccess
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.cachedstate import may_change
from orderlymq_operator.kube.errors import ApiError, ConflictError, ForbiddenError, RetryLaterError
from orderlymq_operator.kube.fanout import for_each
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.accounts import account_secret, is_of
from orderlymq_operator.kube.objects.cluster import identity_secret, operator_secret
from orderlymq_operator.kube.objects.ownership import is_former
from orderlymq_operator.kube.objects.pods import (
    IDENTITY_KEY,
    SECRET_KEY,
    TLS_KEYS,
    Access,
    access_by,
)
from orderlymq_operator.kube.observe.desired import DesiredState
from orderlymq_operator.kube.observe.keypair import KeyPair
from orderlymq_operator.kube.observe.pods import PodFacts
from orderlymq_operator.kube.resources import SECRETS, Json
from orderlymq_operator.plan.permissions import is_kept_for_clusters
from orderlymq_operator.resources.kinds import Cluster, User
from orderlymq_operator.resources.user import fingerprint, usable_secret
from orderlymq_protocol.names import OPERATOR_ACCOUNT
from orderlymq_runtime.pages.token import TOKEN_SIZE_MAX, TOKEN_SIZE_MIN
from orderlymq_runtime.remoting.client import RemotingClient
from orderlymq_runtime.sockets.addresses import join_address

_log = logging.getLogger(__name__)

_SECRET_BYTES: Final = 32
OWN_KEPT_S: Final = 1_800.0


class SecretGoneError(ApiError):
    """A Secret that running processes use was deleted, and its content is unknown: a person must restore it."""

    condition: ClassVar[str] = "SecretMissing"


class _Client:
    """Connections that use one key pair; new connections use a renewed key pair."""

    def __init__(self, pair: KeyPair | None) -> None:
        self._digest = "" if pair is None else pair.digest
        self._context = None if pair is None else pair.context()
        self.client = RemotingClient(tls=lambda: self._context)

    def show(self, pair: KeyPair) -> None:
        """Use *pair* for new connections."""
        if pair.digest != self._digest:
            self._digest, self._context = pair.digest, pair.context()


class Credentials:
    """Clients of brokers, one set of connections per key pair, and one for plain connections."""

    def __init__(
        self,
        api: Api,
        token: Callable[[], int],
        overtaken: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._token = token
        self._overtaken = overtaken
        # By namespace and name of the Secret with the key pair; None is the key of plain connections.
        self._clients: dict[tuple[str | None, str] | None, _Client] = {}
        # By namespace and name of a Cluster: its own Secrets by name, and when they were read.
        self._kept: dict[tuple[str, str], dict[str, tuple[float, Json]]] = {}
        # By namespace and name of a Cluster: for each Secret that was changed, the message for the user.
        self._changed: dict[tuple[str, str], dict[str, str]] = {}
        self._clock = clock

    async def admin(
        self, cluster: Cluster, pods: Iterable[PodFacts] = (), *, runs: bool = False
    ) -> Admin:
        """Return the client for the brokers and name servers of *cluster*; make the Cluster's own Secrets if needed.

        Each of its *pods* is called by plain or TLS connections as the pod was made, because pods of both forms run
        while an edit is rolled out. If the Cluster *runs*, its Secrets must exist.

        Raises:
            ApiError: a Secret cannot be read or made now.
            SecretGoneError: a Secret of a running Cluster is gone.
        """
        identity = await self._own(
            cluster,
            names.identity_secret(cluster),
            partial(identity_secret, cluster),
            IDENTITY_KEY,
            runs=runs,
        )
        forms = {pod.ip: pod.access or access_by(cluster) for pod in pods if pod.running}
        clients = {
            form: await self._client(cluster, form)
            for form in {access_by(cluster), *forms.values()}
        }
        found = await self._own(
            cluster,
            names.operator_secret(cluster),
            partial(operator_secret, cluster),
            SECRET_KEY,
            runs=runs,
        )
        secret = _value(found, SECRET_KEY) or ""
        return Admin(
            clients[access_by(cluster)],
            OPERATOR_ACCOUNT,
            secret,
            self._token(),
            self._overtaken,
            cluster_secret=(_value(identity, IDENTITY_KEY) or "").strip().encode(),
            others={
                join_address(ip, port): clients[form]
                for ip, form in forms.items()
                for port in (names.BROKER_PORT, names.NAME_SERVER_PORT)
            },
        )

    async def missing_secret(self, cluster: Cluster) -> str:
        """Return which missing or unusable Secret keeps the pods of *cluster* from starting; empty if none does.

        Raises:
            ApiError: a Secret cannot be read now.
        """
        return (
            await self.missing_certificate(cluster)
            or await self._missing_token(cluster)
            or await self._missing_key_pair(cluster)
        )

    async def pages(
        self, cluster: Cluster, pods: Iterable[PodFacts] = ()
    ) -> dict[Access, PageAccess]:
        """Return the access to the HTTP pages of *cluster*, for each form in which *pods* were made or are made next.

        Raises:
            ApiError: a Secret cannot be read now.
        """
        forms = {access_by(cluster), *(pod.access for pod in pods if pod.access is not None)}
        return {form: await self._page(cluster, form) for form in forms}

    async def _page(self, cluster: Cluster, form: Access) -> PageAccess:
        if form.token is None or form.tls_secret is None:
            return PageAccess(form.scheme)
        name, key = form.token
        token = _value(await self._api.get(SECRETS, cluster.metadata.namespace, name), key)
        trusted = KeyPair(_value(await self._pair(cluster, form), "ca.crt") or "")
        if trusted.trouble():
            return PageAccess(form.scheme)  # `missing_certificate` reports the problem
        return PageAccess(form.scheme, (token or "").strip(), trusted.context())

    async def _missing_token(self, cluster: Cluster) -> str:
        named = cluster.spec.security.pages_token
        if named is None:
            return ""
        found = await self._api.get(SECRETS, cluster.metadata.namespace, named.secret_name)
        size = len((_value(found, named.key) or "").strip().encode())
        if TOKEN_SIZE_MIN <= size <= TOKEN_SIZE_MAX:
            return ""
        return (
            f"Secret {named.secret_name!r}, which spec.security.pagesToken names, has no token of {TOKEN_SIZE_MIN} to "
            f"{TOKEN_SIZE_MAX} bytes under {named.key!r}"
        )

    async def missing_certificate(self, cluster: Cluster) -> str:
        """Return why the pods of *cluster* cannot get their key pair; empty if they can.

        Raises:
            ApiError: the Secret cannot be read now.
        """
        tls = cluster.spec.tls
        if tls.secret_name is not None:
            return await self._unusable(cluster, tls.secret_name, "spec.tls.secretName", TLS_KEYS)
        if tls.mode == "Disabled":
            return ""
        return f"spec.tls.mode {tls.mode} needs spec.tls.secretName: pods cannot read the files certificateFile and keyFile"

    async def _missing_key_pair(self, cluster: Cluster) -> str:
        """Return why a listener cannot get its key pair; empty if all can."""
        for listener in cluster.spec.listeners:
            if listener.tls is None:
                continue
            needed = TLS_KEYS if listener.tls.client_auth != "None" else TLS_KEYS[:2]
            place = f"listener {listener.name} of spec.listeners"
            text = await self._unusable(cluster, listener.tls.secret_name, place, needed)
            if text:
                return text
        return ""

    async def _unusable(
        self, cluster: Cluster, name: str, place: str, keys: tuple[str, ...]
    ) -> str:
        """Return why the Secret of a key pair, which the field *place* names, cannot be used; empty if it can."""
        found = await self._api.get(SECRETS, cluster.metadata.namespace, name)
        if found is None:
            return f"there is no Secret {name!r}, which {place} names"
        missing = [key for key in keys if not _value(found, key)]
        if missing:
            return f"Secret {name!r}, which {place} names, has no {' and no '.join(missing)}"
        # A listener that requests no client certificates has no authority; then the certificate itself must be
        # readable.
        authority = "ca.crt" if "ca.crt" in keys else "tls.crt"
        wrong = _key_pair(found, authority).trouble().replace("ca.crt", authority)
        return f"Secret {name!r}, which {place} names, cannot be used: {wrong}" if wrong else ""

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(each.client.close() for each in self._clients.values()))

    def forget(self, key: tuple[str, str]) -> None:
        """Drop the cached Secrets of the Cluster with this namespace and name, because it is gone."""
        self._kept.pop(key, None)
        self._changed.pop(key, None)

    def changed_secret(self, key: tuple[str, str]) -> str:
        """Return a message about a changed Secret of the Cluster, as `admin` found it; empty if none was changed.

        Pods that start with the changed Secret could not talk to the running pods.
        """
        return next(iter(self._changed.get(key, {}).values()), "")

    async def _pair(self, cluster: Cluster, form: Access) -> Json | None:
        """Return the Secret with the key pair of processes of this form; if it is deleted, that of new processes."""
        namespace, latest = cluster.metadata.namespace, cluster.spec.tls.secret_name
        for name in dict.fromkeys((form.tls_secret, latest)):
            if name is not None and (found := await self._api.get(SECRETS, namespace, name)):
                return found
        return None

    async def _client(self, cluster: Cluster, form: Access) -> RemotingClient:
        if form.scheme != "https":
            return self._clients.setdefault(None, _Client(None)).client
        pair = _key_pair(await self._pair(cluster, form))
        if pair.trouble():
            pair = KeyPair("")  # `missing_certificate` reports the problem, and no pod runs yet
        key = (cluster.metadata.namespace, form.tls_secret or "")
        found = self._clients.get(key)
        if found is None:
            # Drop idle clients: their Cluster is gone, or no pod uses their Secret any more.
            for former in [each for each, kept in self._clients.items() if kept.client.is_idle]:
                del self._clients[former]
            found = self._clients[key] = _Client(pair)
        found.show(pair)
        return found.client

    async def _own(
        self,
        cluster: Cluster,
        name: str,
        make: Callable[[str], Json],
        key: str,
        *,
        runs: bool,
    ) -> Json | None:
        """Return a Secret that was made for *cluster* itself and never changes; its text is under *key*.

        If changes are not allowed now (`may_change`), a copy that is younger than OWN_KEPT_S is returned, unless the
        Secret was found changed.

        Raises:
            RetryLaterError: the Secret is of a former Cluster of the same name and will be deleted with its other
                objects.
            SecretGoneError: the Secret is gone although the Cluster *runs*.
        """
        meta = cluster.metadata
        now = self._clock()
        secrets_of = self._kept.setdefault((meta.namespace or "", meta.name), {})
        read_at, kept = secrets_of.get(name, (0.0, None))
        changed = self._changed.setdefault((meta.namespace or "", meta.name), {})
        is_recent = now - read_at < OWN_KEPT_S and not may_change() and name not in changed
        if kept is not None and is_recent and is_of(cluster, kept):
            return kept
        text = _value(kept, key) if kept is not None and is_of(cluster, kept) else None
        if runs and text is None:
            found = await self._api.get(SECRETS, meta.namespace, name)
            if found is None:
                raise SecretGoneError(
                    f"Secret {name!r} is gone, but processes of the Cluster use it: restore it with its key {key!r}",
                    404,
                )
        else:
            found = await self._made_once(meta.namespace, name, make, text)
        if found is not None and is_former(meta, found):
            raise RetryLaterError(
                f"Secret {name} of a former Cluster of this name is deleted first", 0
            )
        changed.pop(name, None)
        if runs and text is not None and _value(found, key) != text:
            changed[name] = (
                f"Secret {name!r} was changed, but processes of the Cluster use its former content: restore its key {key!r}"
            )
            return kept  # the next call reads the Secret again
        if found is not None:
            secrets_of[name] = (now, found)
        return found

    async def _made_once(
        self,
        namespace: str | None,
        name: str,
        make: Callable[[str], Json],
        text: str | None = None,
    ) -> Json | None:
        """Return a Secret; if it is missing, make it with *text*, or with new random text if *text* is None."""
        found = await self._api.get(SECRETS, namespace, name)
        if found is not None:
            return found
        try:
            made = make(text or secrets.token_hex(_SECRET_BYTES))
            return await self._api.create(SECRETS, namespace, made)
        except ConflictError:  # another operator has just made it
            return await self._api.get(SECRETS, namespace, name)

    async def secrets(self, state: DesiredState) -> dict[str, str | None]:
        """Return the secrets of the Users, by name; None if a User has no usable secret."""
        found: dict[str, str | None] = {user.metadata.name: None for user in state.desired.users}

        async def read(user: User) -> None:
            found[user.metadata.name] = await self._secret_or_none(user)

        await for_each(state.desired.users, read)
        return found

    async def _secret_or_none(self, user: User) -> str | None:
        try:
            return await self._secret(user)
        except ForbiddenError as error:
            if error.status != 403:
                raise
            # The Role of a namespace may be deleted before the Users in it, and their Cluster may be in another
            # namespace.
            _log.error("User %s: its Secret cannot be read: %s", user.metadata.name, error)
            return None

    async def _secret(self, user: User) -> str | None:
        if user.spec.secret_from is None:
            return await self._made_secret(user)
        source = user.spec.secret_from.secret
        # Otherwise, the owner of the Cluster that gets this secret could act as a replica or the operator of another
        # Cluster.
        if source is None or is_kept_for_clusters(source.name):
            return None
        namespace = user.metadata.name.partition("/")[0]
        found = await self._api.get(SECRETS, namespace, source.name)
        return usable_secret(_value(found, source.key) or "")

    async def _made_secret(self, user: User) -> str | None:
        """Return the secret that the operator makes for a User that names no Secret; make it if it is missing.

        Return None if an object of another owner has the name.
        """
        namespace, _, name = user.metadata.name.partition("/")
        make = partial(account_secret, user, namespace, name)
        found = await self._made_once(namespace, names.user_secret(name), make)
        if found is None or not is_of(user, found):
            return None
        return _value(found, SECRET_KEY)

    @staticmethod
    def fingerprints(state: DesiredState, found: dict[str, str | None]) -> dict[str, str | None]:
        """Return fingerprints of the secrets, to compare with those of brokers; None if a User has no secret."""
        keys = {user.metadata.name: user.access_key for user in state.desired.users}
        return {
            name: None if text is None else fingerprint(keys[name], text)
            for name, text in found.items()
        }


def _key_pair(secret: Json | None, authority: str = "ca.crt") -> KeyPair:
    """Return the key pair in a Secret; the certificate is sent only to brokers that request one."""
    certificate, key = _value(secret, "tls.crt") or "", _value(secret, "tls.key") or ""
    return KeyPair(_value(secret, authority) or "", certificate, key)


def _value(secret: Json | None, key: str) -> str | None:
    text = ((secret or {}).get("data") or {}).get(key)
    if text is None:
        return None
    try:
        return base64.b64decode(text).decode()
    except ValueError:
        return None
