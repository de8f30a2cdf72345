"""
A client of the Kubernetes API server for a process in a pod.

Rules: the address comes from the pod's environment, and the rights come from its token. The token is read for each request, because
Kubernetes replaces it. The size and the time of an answer are limited.
"""

import os
import ssl
from pathlib import Path
from typing import Final, Self

import aiohttp

from orderlymq.errors import OrderlyMQError
from orderlymq_runtime.security.tls import checking_as_kubernetes

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_S: Final = 3.0


class ApiServerSilent(OrderlyMQError):  # noqa: N818 - says what happened
    """The API server cannot be asked now; the text says why."""


class ApiServer:
    """A client of one API server.

    Args:
        url: its address.
        account: folder with the token and the CA certificate of the API server.
    """

    def __init__(self, url: str, account: Path = _ACCOUNT) -> None:
        self._url = url
        self._account = account

    @classmethod
    def in_pod(cls) -> Self:
        """Return a client of the API server that Kubernetes names in each pod."""
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        shown = f"[{host}]" if ":" in host else host
        return cls(f"https://{shown}:{port}")

    async def get(
        self, path: str, *, size_max: int, accept: str = "application/json"
    ) -> tuple[int, bytearray]:
        """Return the status and body of an answer; reading stops once the body exceeds *size_max* bytes.

        Raises:
            ApiServerSilent: The API server does not answer.
        """
        try:
            token = (self._account / "token").read_text().strip()
            context = self._tls()
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
            headers = {"Authorization": f"Bearer {token}", "Accept": accept}
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.get(self._url + path, ssl=context) as answer,
            ):
                body = bytearray()
                # One read returns one packet.
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > size_max:
                        break
        except (OSError, aiohttp.ClientError, TimeoutError, ssl.SSLError) as error:
            reason = str(error) or f"no answer within {_TIMEOUT_S:g} s"
            raise ApiServerSilent(f"the API server cannot be asked: {reason}") from error
        return answer.status, body

    def _tls(self) -> ssl.SSLContext | bool:
        if not self._url.startswith("https:"):
            return True
        authority = str(self._account / "ca.crt")
        return checking_as_kubernetes(ssl.create_default_context(cafile=authority))
