"""
The API server's client: reads and writes plain JSON objects, and counts requests.

This module uses the asynchronous client of the `kubernetes` package for addresses, certificates and tokens, but none of
its models. Objects stay JSON, so that fields that this version does not know survive. Rules: one request per call, and
no retries here. The caller decides, because only a new reconcile reads the current state. The timeout of a request
begins when it gets a connection. Requests for the Lease have their own connections, so that a slow API server does not
cost the lease.
"""

import asyncio
import copy
import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.rest import RESTClientObject

from orderlymq_operator.kube.cachedstate import must_have_read
from orderlymq_operator.kube.errors import (
    ApiError,
    ConflictError,
    NameTakenError,
    NotFoundError,
    RetryLaterError,
    error_of,
    eviction_refusal,
    json_object,
)
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.resources import EVENTS, LEASES, PODS, Json, Resource, resource_of
from orderlymq_runtime.followedfiles import FollowedFiles

_log = logging.getLogger(__name__)

FIELD_MANAGER: Final = "orderlymq-operator"
_TIMEOUT_S: Final = 30.0
# Objects per page of a list: some hundred kilobytes, which load the API server less than megabytes.
PAGE: Final = 500
_WHOLE: Final = "application/json"
_METADATA: Final = f"{_WHOLE};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_CONNECTIONS_MAX: Final = 16
# One for a renewal of the lease, and one for a previous renewal that was cancelled and is ending.
_LEASE_CONNECTIONS_MAX: Final = 2
# Kubernetes sets this variable in every pod.
IN_CLUSTER: Final = "KUBERNETES_SERVICE_HOST"


class _Connections:
    """Connections of one client; a request waits here for a connection before its timeout begins."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client
        self.gate = asyncio.Semaphore(client.configuration.connection_pool_maxsize)
        authority = client.configuration.ssl_ca_cert
        self._authority = FollowedFiles(
            *([] if authority is None else [Path(authority)]),
            log=_log,
            stays="the operator continues to trust the present authority of the API server",
        )
        # REST clients that were used with previous authorities.
        self._former: list[RESTClientObject] = []

    async def close(self) -> None:
        await self.client.close()  # type: ignore[no-untyped-call]  # kubernetes has no types there
        for former in self._former:
            await former.close()

    def follow_authority(self) -> None:
        """Read the authority file again if it has changed: a cluster may get another authority while this process runs.

        Running requests keep their REST client, which `close` closes. A file that cannot be used is read again before
        the next request.
        """
        fresh = self._authority.read_changed(
            lambda: RESTClientObject(self.client.configuration), OSError
        )
        if fresh is None:
            return
        self._former.append(self.client.rest_client)
        self.client.rest_client = fresh


class Api:
    """Reads and writes objects; use it as an asynchronous context manager."""

    def __init__(self, client: ApiClient, metrics: OperatorMetrics) -> None:
        self._connections = _Connections(client)
        self._of_lease: _Connections | None = None
        self.host = client.configuration.host
        self._metrics = metrics
        # Whether this process may change objects now; it may lose the lease in the middle of a reconcile.
        self.acts: Callable[[], bool] = lambda: True
        # The Date header of the last answer, and the monotonic time at which it arrived.
        self._dated = ("", 0.0)

    @classmethod
    async def connect(cls, metrics: OperatorMetrics, context: str | None = None) -> Self:
        """Connect by the pod's service account, or outside a cluster by *context* of KUBECONFIG."""
        settings = Configuration()
        if os.environ.get(IN_CLUSTER):
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]  # kubernetes has no types there
        else:
            await config.load_kube_config(context=context, client_configuration=settings)  # type: ignore[no-untyped-call]  # likewise
        settings.connection_pool_maxsize = _CONNECTIONS_MAX
        settings.retries = False
        # The same as in `checking_as_kubernetes`.
        settings.disable_strict_ssl_verification = True
        return cls(ApiClient(configuration=settings), metrics)

    @staticmethod
    def namespace(context: str | None = None) -> str:
        """Return the namespace of a *context* of KUBECONFIG; None means the current context."""
        contexts, active = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]  # likewise
        chosen = next((each for each in contexts if each["name"] == context), active)
        return str(chosen["context"].get("namespace") or "default")

    def server_time(self) -> datetime | None:
        """Return the API server's current time, to a second or two; None if the last answer had no valid date."""
        text, at = self._dated
        try:
            said = parsedate_to_datetime(text)
        except ValueError:
            return None
        return said.replace(tzinfo=UTC) + timedelta(seconds=time.monotonic() - at)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in (self._connections, self._of_lease):
            if each is not None:
                await each.close()

    def _connections_for(self, resource: Resource) -> _Connections:
        if resource != LEASES:
            return self._connections
        if self._of_lease is None:
            settings = copy.deepcopy(self._connections.client.configuration)
            settings.connection_pool_maxsize = _LEASE_CONNECTIONS_MAX
            self._of_lease = _Connections(ApiClient(configuration=settings))
        return self._of_lease

    # -- reading -------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        """Return the current state of an object; None if it does not exist."""
        try:
            return await self._call("get", resource, resource.path(namespace, name))
        except NotFoundError:
            return None

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        whole: bool = True,
    ) -> list[Json]:
        """Return all objects of a kind, in one namespace or in all; *labels* and *fields* are selectors.

        If *whole* is False, the objects contain only their metadata.
        """
        found: list[Json] = []
        query = {"limit": str(PAGE)} | ({"labelSelector": labels} if labels else {})
        if fields:
            query["fieldSelector"] = fields
        accept = _WHOLE if whole else _METADATA
        while True:
            try:
                page = await self._call(
                    "list", resource, resource.path(namespace), query=query, accept=accept
                )
            except NotFoundError:
                if not resource.optional:
                    raise
                return []
            # Items of a list have no kind of their own. An empty list of metadata has null in place of the items.
            kind = {"apiVersion": resource.api_version, "kind": resource.kind}
            found += [item | kind for item in page["items"] or ()]
            following = page["metadata"].get("continue")
            if not following:
                return found
            query["continue"] = following

    async def serves(self, resource: Resource) -> bool:
        """Return whether the API server knows a kind in this version; the request needs no rights."""
        try:
            found = await self._call("get", resource, resource.root)
        except NotFoundError:
            return False
        return any(each["name"] == resource.plural for each in found["resources"])

    # -- writing -------------------------------------------------------------------------------

    async def apply(self, made: Json) -> Json:
        """Create or change an object by server-side apply; fields of others that *made* lacks stay unchanged."""
        resource = resource_of(made)
        meta = made["metadata"]
        return await self._apply(resource, resource.path(meta.get("namespace"), meta["name"]), made)

    async def make(self, made: Json) -> Json:
        """Apply an object that the last read did not show.

        Raises:
            NameTakenError: an object of that name exists that has none of the same owners.
            RetryLaterError: the object was created after the last read, so that an apply might revert one of its
                fields.
        """
        must_have_read()
        meta, kind = made["metadata"], made["kind"]
        place = f"metadata.name={meta['name']}"
        for found in await self.list(
            resource_of(made), meta["namespace"], fields=place, whole=False
        ):
            if not _owners(found) & _owners(made):
                text = f"a {kind} {meta['name']} that the operator does not own exists; rename one of the two, or delete it"
                raise NameTakenError(text, 409)
            if meta["labels"].items() <= (found["metadata"].get("labels") or {}).items():
                raise RetryLaterError(f"{kind} {meta['name']} was just created", 409)
        return await self.apply(made)

    async def apply_status(self, made: Json, version: str) -> Json:
        """Write the status of an object whose resourceVersion is *version*; fields missing in *made* are removed.

        Raises:
            ConflictError: the object has another version, or another object has the name.
        """
        resource = resource_of(made)
        meta = {**made["metadata"], "resourceVersion": version}
        made = {**made, "metadata": meta}
        path = resource.path(meta.get("namespace"), meta["name"], "status")
        return await self._apply(resource, path, made)

    async def _apply(self, resource: Resource, path: str, made: Json) -> Json:
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._call("apply", resource, path, query=query, body=made, content=_APPLY)

    async def create(
        self, resource: Resource, namespace: str | None, made: Json, *, dry: bool = False
    ) -> Json:
        """Create an object; *dry* only checks whether that is possible.

        Raises:
            ConflictError: it exists already.
        """
        query = {"dryRun": "All"} if dry else None
        return await self._call(
            "create", resource, resource.path(namespace), query=query, body=made
        )

    async def replace(self, resource: Resource, namespace: str | None, made: Json) -> Json:
        """Replace an object; its resourceVersion must be the current one.

        Raises:
            ConflictError: another client has changed the object since.
        """
        path = resource.path(namespace, made["metadata"]["name"])
        return await self._call("update", resource, path, body=made)

    async def patch(
        self, resource: Resource, namespace: str | None, name: str, change: Json
    ) -> Json:
        """Merge *change* into an object."""
        path = resource.path(namespace, name)
        query = {"fieldManager": FIELD_MANAGER}
        return await self._call("patch", resource, path, query=query, body=change, content=_MERGE)

    async def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str,
        propagation: str | None = None,
    ) -> bool:
        """Delete the object only if it has *uid*; return whether it existed.

        A request may arrive late, when a newer object may have the same name. *propagation* decides about dependent
        objects; without it, the pods of a deleted Job remain.
        """
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if propagation is not None:
            body["propagationPolicy"] = propagation
        try:
            await self._call("delete", resource, resource.path(namespace, name), body=body)
        except (ConflictError, NotFoundError):
            return False  # it is gone, or another object has the name now
        return True

    async def evict(self, namespace: str, name: str, uid: str) -> bool:
        """Evict a pod if its disruption budget allows it; return whether the pod with *uid* existed.

        Raises:
            EvictionRefusedError: the budget does not allow it now.
            BudgetsOverlapError: several budgets select the pod.
        """
        body: Json = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        try:
            await self._call("evict", PODS, PODS.path(namespace, name, "eviction"), body=body)
        except (ConflictError, NotFoundError):
            return False  # it is gone, or another object has the name now
        except ApiError as error:
            if (refusal := eviction_refusal(error)) is not None:
                raise refusal from error
            raise
        return True

    def must_lead(self) -> None:
        """Check that this operator may act; the operator calls this before each write to brokers or name servers.

        Raises:
            RetryLaterError: another operator may lead, and the plan of this one may be out of date.
        """
        if not self.acts():
            raise RetryLaterError("this operator is no longer the leader; the leader continues", 0)

    async def _call(
        self,
        verb: str,
        resource: Resource,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content: str = _WHOLE,
        accept: str = _WHOLE,
    ) -> Json:
        if verb not in _READS and resource != EVENTS and not path.endswith("/status"):
            must_have_read()
        url = f"{self.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": accept, "Content-Type": content}
        method = _METHODS[verb]
        status = 0
        connections = self._connections_for(resource)
        async with connections.gate:
            # This process may have lost the lease while the request waited for a connection.
            if verb not in _READS and resource not in (EVENTS, LEASES):
                self.must_lead()
            connections.follow_authority()
            try:
                await connections.client.update_params_for_auth(
                    headers, [], ["BearerToken"], path, method, body
                )
                answer = await connections.client.call_api(
                    method, url, headers, body=body, _request_timeout=_TIMEOUT_S
                )
                text = await answer.read()  # type: ignore[no-untyped-call]  # likewise
                status = answer.status
                self._dated = (answer.headers.get("Date", ""), time.monotonic())
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise RetryLaterError(f"the API server does not answer: {error!r}", 0) from error
            finally:
                self._metrics.requests.labels(verb, resource.plural, str(status)).inc()
        if status >= 400:
            raise error_of(status, text, answer.headers)
        try:
            return json_object(text)
        except ValueError as error:
            # Something in between answered instead, such as a proxy or a load balancer that is starting.
            what = text[:200].decode(errors="replace")
            raise RetryLaterError(f"no API server answered, but {what!r}", 0) from error


_METHODS: Final = {
    "get": "GET",
    "list": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "apply": "PATCH",
    "delete": "DELETE",
    "evict": "POST",
}
_READS: Final = {"get", "list"}


def _owners(found: Json) -> set[str]:
    return {each["uid"] for each in found["metadata"].get("ownerReferences") or []}
