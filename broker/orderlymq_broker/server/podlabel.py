"""
In Kubernetes, the pod of the replica that serves has the label by which the group's Service finds it.

The rules: a new leader labels itself first and then removes the label from its siblings, so that there is always an
endpoint. A replica that no longer serves removes its own label a little later, in case no other replica can serve. Of
two pods, the one that leads in the higher term is right. So a label is removed only from a pod of a lower term, and
only if the pod is unchanged since it was read. Nothing here delays or fails a request; refused calls to the API
server are repeated. If a leader's pod lacks the label and the API server refuses it, the leader reports this and is
not ready. It goes on, because a predecessor with the label forwards requests, and what is refused to one pod is
usually refused to the others. An API server that does not answer is not reported.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson

from orderlymq_broker.server.address import COMPLAIN_AFTER_S
from orderlymq_broker.settings import PodSettings
from orderlymq_runtime.followedfiles import NO_FILE, file_stamp
from orderlymq_runtime.process.supervisor import Supervisor, end_tasks
from orderlymq_runtime.security.tls import checking_as_kubernetes

_log = logging.getLogger(__name__)

ROLE: Final = "orderlymq.io/role"
TERM: Final = "orderlymq.io/term"
LEADER: Final = "leader"

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MERGE: Final = "application/merge-patch+json"
_TIMEOUT_S: Final = 2.0
RETRY_FIRST_S: Final = 0.05
# An outage of the API server may last a minute; two calls per second do no harm.
RETRY_MAX_S: Final = 0.5
# A successor labels itself within some hundred milliseconds, and requests are forwarded meanwhile.
FAREWELL_S: Final = 1.0


# Of these, "too many requests" and "time-out" do not refuse the request itself.
_REFUSALS: Final = frozenset(range(400, 500)) - {408, 429}


class LabelError(Exception):
    """The API server refused or did not answer; try again."""

    def __init__(self, text: str, *, is_refusal: bool = False) -> None:
        super().__init__(text)
        self.is_refusal = is_refusal


class ApiServer:
    """The API server for a pod: its address comes from the environment, its credentials from a mounted token."""

    def __init__(self, url: str | None = None, account: Path = _ACCOUNT) -> None:
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        self._url = url or f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self._account = account
        self._session: aiohttp.ClientSession | None = None
        # The stamp of the certificate authority that the session trusts.
        self._stamp = NO_FILE

    async def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Return the metadata of a pod, or None if it does not exist.

        Raises:
            LabelError: the API server did not answer, or refused.
        """
        status, body = await self._call("GET", namespace, name, None)
        if status == 404:
            return None
        return _metadata(status, body)

    async def patch(self, namespace: str, name: str, change: Mapping[str, Any]) -> None:
        """Merge *change* into the metadata of a pod; do nothing if the pod does not exist.

        Raises:
            LabelError: as in `pod`; also if the pod has changed since its resourceVersion.
        """
        status, body = await self._call("PATCH", namespace, name, {"metadata": change})
        if status != 404:
            _metadata(status, body)

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()

    async def _call(
        self, method: str, namespace: str, name: str, change: Mapping[str, Any] | None
    ) -> tuple[int, bytes]:
        url = f"{self._url}/api/v1/namespaces/{namespace}/pods/{name}"
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        body = None if change is None else orjson.dumps(change)
        try:
            # The token is replaced in its file about every hour.
            token = (self._account / "token").read_text(encoding="utf-8").strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": _MERGE}
            session = await self._following_session()
            async with session.request(
                method, url, data=body, headers=headers, timeout=timeout
            ) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise LabelError(f"the API server does not answer: {error!r}") from error

    async def _following_session(self) -> aiohttp.ClientSession:
        """Return a session that trusts the present authority, because a cluster may get another one while this pod runs."""
        authority = self._account / "ca.crt"
        stamp = file_stamp(authority)
        if self._session is not None and stamp == self._stamp:
            return self._session
        former = self._session
        session = self._session = self._open(authority)
        self._stamp = stamp
        if former is not None:
            await former.close()
        return session

    def _open(self, authority: Path) -> aiohttp.ClientSession:
        context: ssl.SSLContext | bool = True
        if authority.exists():
            context = checking_as_kubernetes(ssl.create_default_context(cafile=authority))
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))


class PodLabel:
    """Keeps the labels of this pod and its siblings in step with the serving replica.

    Life cycle: `serving_began` and `serving_ended` any number of times, `close` at the end.

    Args:
        term: returns the raft term in which this replica leads now.

    Attributes:
        complaint: why this leader's pod lacks the label; "" if it has or may have the label, or does not lead.
    """

    def __init__(
        self,
        settings: PodSettings,
        server: ApiServer,
        term: Callable[[], int],
        supervisor: Supervisor | None = None,
    ) -> None:
        self.complaint = ""
        self._supervisor = supervisor or Supervisor()
        # None if it is unknown, because a former process of this pod may have led.
        self._has_label: bool | None = None
        self._settings = settings
        self._server = server
        self._term = term
        self._task: asyncio.Task[None] | None = None

    def serving_began(self) -> None:
        """Set the label on this pod, then remove it from the siblings."""
        self._start(partial(self._take, self._term()))

    def serving_ended(self) -> None:
        """Remove the label from this pod unless a successor has done so meanwhile."""
        self.complaint = ""
        self._start(self._give_up)

    async def close(self) -> None:
        """Stop trying; a pod that ends is no longer an endpoint."""
        if self._task is not None:
            await end_tasks([self._task])
        await self._server.close()

    async def wait(self) -> None:
        """Wait until the labels are set as intended; for tests."""
        if self._task is not None:
            await self._task

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = self._supervisor.keep("pod label", work)

    async def _take(self, term: int) -> None:
        own = self._settings.name
        change = {"labels": {ROLE: LEADER}, "annotations": {TERM: str(term)}}
        await self._persist(own, lambda: self._take_once(own, change), self._refusals())
        self._has_label, self.complaint = True, ""
        _log.info("pod %s carries the label of the leader in term %d", own, term)
        await asyncio.gather(*(self._strip(name, term) for name in self._settings.siblings))

    async def _take_once(self, own: str, change: Mapping[str, Any]) -> None:
        try:
            await self._server.patch(self._settings.namespace, own, change)
        except LabelError as error:
            if error.is_refusal:
                await self._look(own)
            raise

    def _refusals(self) -> Callable[[LabelError], None]:
        """Return a function that gets each failure to set the label, and complains if refusals last."""
        now = asyncio.get_running_loop().time
        complain_at = now() + COMPLAIN_AFTER_S

        def failed(error: LabelError) -> None:
            nonlocal complain_at
            if self._has_label is not False:
                self.complaint = ""
            elif error.is_refusal and now() >= complain_at:
                complain_at = now() + COMPLAIN_AFTER_S
                self.complaint = f"its pod does not get the label {ROLE}={LEADER}: {error}"
                _log.error("this replica leads, but cannot be reached: %s", self.complaint)

        return failed

    async def _give_up(self) -> None:
        await asyncio.sleep(FAREWELL_S)
        await self._strip(self._settings.name, None)

    async def _strip(self, name: str, term: int | None) -> None:
        """Remove the label from a pod, unless the pod leads in a higher term than *term*."""
        await self._persist(name, lambda: self._strip_once(name, term))

    async def _strip_once(self, name: str, term: int | None) -> None:
        found = await self._look(name)
        if found is None or (term is not None and _term_of(found) > term):
            return
        change = {"labels": {ROLE: None}, "resourceVersion": found["resourceVersion"]}
        await self._server.patch(self._settings.namespace, name, change)
        if name == self._settings.name:
            self._has_label = False

    async def _look(self, name: str) -> Mapping[str, Any] | None:
        """Return the metadata of a pod if it has the label, otherwise None."""
        found = await self._server.pod(self._settings.namespace, name)
        has_label = found is not None and ROLE in (found.get("labels") or {})
        if name == self._settings.name:
            self._has_label = has_label
        return found if has_label else None

    async def _persist(
        self,
        name: str,
        attempt: Callable[[], Any],
        failed: Callable[[LabelError], None] = lambda _: None,
    ) -> None:
        delay_s = RETRY_FIRST_S
        said = False
        while True:
            try:
                await attempt()
            except LabelError as error:
                if not said:
                    _log.warning("cannot set the role of pod %s; trying again: %s", name, error)
                said = True
                failed(error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)
            else:
                return


def _term_of(metadata: Mapping[str, Any]) -> int:
    text = str((metadata.get("annotations") or {}).get(TERM, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _metadata(status: int, body: bytes) -> Mapping[str, Any]:
    try:
        answer = orjson.loads(body)
    except ValueError as error:
        raise LabelError(f"the API server answered {status} without JSON") from error
    if status >= 400:
        said = f"the API server answered {status}: {answer.get('message', '')}"
        raise LabelError(said, is_refusal=status in _REFUSALS)
    metadata: Mapping[str, Any] = answer["metadata"]
    return metadata
