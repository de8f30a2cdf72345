"""
Settings of the console: where it listens, which accounts may sign in, and what it may do.

Rule: if other machines can reach the console, it does not start without accounts, and it shows no page without one.
"""

import re
import secrets
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from orderlymq.errors import SettingError
from orderlymq_protocol.hosts import is_loopback
from orderlymq_runtime.sockets.addresses import split_address

TOKEN_LENGTH_MIN: Final = 20
LOCAL_ACCOUNT: Final = "local"
_ACCOUNTS_MAX: Final = 1_000

Right = Literal["view", "act"]


@dataclass(frozen=True, slots=True)
class Account:
    """An account that may sign in; *right* is ``view`` or ``act``."""

    name: str
    right: Right
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """All settings of the console.

    Attributes:
        name_servers: ``host:port;host:port``; None takes them from the environment.
        host, port: where it listens; port 0 takes a free one.
        hosts: names under which browsers may open it, in addition to addresses and localhost; in lower case, in which they are compared.
        https_hosts: the same, for names of a proxy that speaks TLS for the console.
        accounts: the accounts that may sign in; if there are none, everybody on this machine may look.
        read_only: nobody may change anything.
        certificate, key: PEM files; if they are given, the console speaks TLS.
        pipelines: manifests of pipelines, or folders of them.
        pipelines_of: in a pod, the namespace and name of the Cluster whose Pipelines are read.
    """

    name_servers: str | None = None
    host: str = "127.0.0.1"
    port: int = 9870
    hosts: tuple[str, ...] = ()
    https_hosts: tuple[str, ...] = ()
    accounts: tuple[Account, ...] = ()
    read_only: bool = False
    certificate: Path | None = None
    key: Path | None = None
    pipelines: tuple[Path, ...] = ()
    pipelines_of: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        for name in ("hosts", "https_hosts"):
            small = tuple(each.lower() for each in getattr(self, name))
            object.__setattr__(self, name, small)
        if not self.accounts and not is_loopback(self.host):
            raise SettingError(
                f"to listen on {self.host}, which other machines can reach, the console needs accounts: "
                "pass --accounts FILE, or listen on 127.0.0.1"
            )
        if (self.certificate is None) != (self.key is None):
            raise SettingError("pass --tls-certificate and --tls-key together")
        if self.pipelines and self.pipelines_of is not None:
            raise SettingError("pass --pipelines or --pipelines-of, not both")

    @property
    def needs_account(self) -> bool:
        """Whether a person needs an account to look at pages."""
        return bool(self.accounts)


def local_account() -> Account:
    """Return an account for the person who started the console; its token is valid as long as the process runs."""
    return Account(LOCAL_ACCOUNT, "act", secrets.token_urlsafe(24))


def parse_listen(text: str) -> tuple[str, int]:
    """Parse ``host:port``; an IPv6 address stands in brackets.

    Raises:
        SettingError: The text has another form.
    """
    try:
        return split_address(text)
    except ValueError:
        raise SettingError(
            f"{text!r} is not an address to listen on; write 127.0.0.1:9870"
        ) from None


def parse_cluster(text: str) -> tuple[str, str]:
    """Parse ``NAMESPACE/CLUSTER``.

    Raises:
        SettingError: The text has another form.
    """
    namespace, slash, cluster = text.partition("/")
    if not slash or not all(
        re.fullmatch(r"[a-z0-9][-.a-z0-9]{0,252}", each) for each in (namespace, cluster)
    ):
        raise SettingError(f"{text!r} does not name a Cluster; write NAMESPACE/CLUSTER")
    return namespace, cluster


def read_accounts(path: Path) -> tuple[Account, ...]:
    """Read accounts from a TOML file: a table for each name, with `token` and `right`.

    Raises:
        SettingError: The file cannot be read, or an account is not valid; the text names the account, never a token.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"the accounts in {path} cannot be read: {error}") from error
    if not tables or len(tables) > _ACCOUNTS_MAX:
        raise SettingError(
            f"{path} must hold 1 to {_ACCOUNTS_MAX} accounts, but holds {len(tables)}"
        )
    return tuple(_account(path, name, table) for name, table in tables.items())


def _account(path: Path, name: str, table: object) -> Account:
    values = table if isinstance(table, dict) else {}
    token, right = values.get("token"), values.get("right", "view")
    if not isinstance(token, str) or len(token) < TOKEN_LENGTH_MIN:
        raise SettingError(
            f"the account {name} in {path} needs a token of at least {TOKEN_LENGTH_MIN} characters"
        )
    if right not in ("view", "act"):
        raise SettingError(f"the right of the account {name} in {path} must be view or act")
    if set(values) - {"token", "right"}:
        raise SettingError(f"the account {name} in {path} may hold only token and right")
    return Account(name, right, token)
