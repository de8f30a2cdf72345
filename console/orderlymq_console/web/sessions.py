"""
Sessions: who has signed in, until when, and the value that proves that a form is the console's own.

Rules: a session lives in this process and ends with it. The number of sessions is limited. Beyond the limit expired sessions go first,
then the oldest of the account with the most sessions, so nobody can end the sessions of accounts that have fewer. A token is compared
in constant time. Wrong tokens are answered as wrong until too many come in a minute; they never keep a right token out.
"""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orderlymq_console.settings import Account
from orderlymq_console.web.viewers import oldest_of_most

COOKIE: Final = "orderlymq_console"
LIFE_S: Final = 12 * 3_600.0
SESSIONS_MAX: Final = 1_000
# Wrong tokens that are answered as wrong within the time; a token has more than 100 bits, so nobody guesses one.
WRONG_MAX: Final = 20
WRONG_WITHIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Session:
    """The session of a person who has signed in; each form carries *proof*."""

    account: Account
    proof: str
    ends_s: float


class TooManyWrong(Exception):  # noqa: N818 - says what happened
    """The token is wrong, and too many wrong ones came in the last minute; wait."""


class Sessions:
    """All sessions of this process."""

    def __init__(
        self, accounts: tuple[Account, ...], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._accounts = tuple((_digest(each.token), each) for each in accounts)
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._wrong: deque[float] = deque(maxlen=WRONG_MAX)

    def account(self, token: str) -> Account | None:
        """Return the account of a token; None if the token is wrong. A right token is accepted, however many wrong ones strangers send.

        Raises:
            TooManyWrong: It is wrong, and too many wrong ones came in the last minute.
        """
        digest = _digest(token)
        found = [account for each, account in self._accounts if hmac.compare_digest(each, digest)]
        if found:
            return found[0]
        now_s = self._clock()
        if len(self._wrong) == WRONG_MAX and now_s - self._wrong[0] < WRONG_WITHIN_S:
            raise TooManyWrong
        self._wrong.append(now_s)
        return None

    def begin(self, account: Account) -> str:
        """Begin a session; return the value of its cookie."""
        name = secrets.token_urlsafe(32)
        self._sessions[name] = Session(account, secrets.token_urlsafe(32), self._clock() + LIFE_S)
        if len(self._sessions) > SESSIONS_MAX:
            self._make_room()
        return name

    def _make_room(self) -> None:
        over = [name for name, each in self._sessions.items() if each.ends_s <= self._clock()]
        if not over:
            over = [oldest_of_most({n: each.account.name for n, each in self._sessions.items()})]
        for name in over:
            del self._sessions[name]

    def get(self, name: str) -> Session | None:
        """Return a session that has not ended; None if there is none."""
        session = self._sessions.get(name)
        if session is not None and session.ends_s <= self._clock():
            del self._sessions[name]
            return None
        return session

    def end(self, name: str) -> None:
        """End a session."""
        self._sessions.pop(name, None)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
