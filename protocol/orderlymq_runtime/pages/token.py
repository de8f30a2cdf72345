"""
The token that `/status` and `/metrics` require, in a file that may change while the process runs.

Rule: it is compared in constant time, and it is never accepted from a request that could be read on the way. If the file
cannot be read any more, the present token stays effective.
"""

import hmac
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orderlymq_runtime.followedfiles import FollowedFiles
from orderlymq_runtime.security.secretfile import read_secret
from orderlymq_runtime.security.tls import ServerTls

_log = logging.getLogger(__name__)

TOKEN_SIZE_MIN: Final = 16
TOKEN_SIZE_MAX: Final = 1024
_SCHEME: Final = "bearer "


class PageTokenError(ValueError):
    """The file holds no token; the text says what to write."""


class PageToken:
    """The token of one process.

    Raises:
        PageTokenError: at the start, if the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._followed = FollowedFiles(path, log=_log, stays="the previous token stays effective")
        self._token = _read(path)

    def is_in(self, authorization: str) -> bool:
        """Return whether the header *authorization* holds the token, as `Bearer TOKEN`."""
        self._follow()
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            return False
        given = authorization[len(_SCHEME) :].strip().encode(errors="surrogateescape")
        return hmac.compare_digest(given, self._token)

    def objection(self, authorization: str, *, is_protected: bool) -> tuple[int, str] | None:
        """Return the HTTP code and text with which a request is refused; None if it may read the page.

        *is_protected* means that it came over TLS or loopback.
        """
        if not is_protected:
            # Even the right token is refused, because the network knows a token that came this way.
            return 403, "this page requires a token; use https\n"
        if not self.is_in(authorization):
            return 401, "this page requires a token: send Authorization: Bearer TOKEN\n"
        return None

    def _follow(self) -> None:
        token = self._followed.read_changed(lambda: _read(self._path), PageTokenError)
        if token is not None:
            self._token = token
            _log.info("the token of the HTTP pages was read again")


@dataclass(frozen=True, slots=True)
class PageGuard:
    """Who may ask for the pages of a process, and how.

    Attributes:
        tls: whether plain requests, TLS or both are served; None for plain requests.
        token: the token that `/metrics` and `/status` require; probes have none, so the other pages stay open.
    """

    tls: ServerTls | None = None
    token: PageToken | None = None


def _read(path: Path) -> bytes:
    sizes = range(TOKEN_SIZE_MIN, TOKEN_SIZE_MAX + 1)
    cure = (
        "write the token of the HTTP pages into it, for example the output of `openssl rand -hex "
        "32`"
    )
    return read_secret(path, "pages_token_file", sizes, PageTokenError, cure)
