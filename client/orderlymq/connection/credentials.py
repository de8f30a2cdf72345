"""
The sources of a client's credentials: the settings, else the environment, else a file.

Rule: the first source that names an access key (or a token) supplies everything; credentials are never logged. The
file that ORDERLYMQ_CREDENTIALS names holds the lines `access_key = ...`, `secret_key = ...` and, if needed,
`token = ...`.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orderlymq.errors import SettingError
from orderlymq.settings import ClientSettings
from orderlymq_runtime.security.tls import ContextSource, TlsError, TlsFiles, following_client

FILE_VARIABLE: Final = "ORDERLYMQ_CREDENTIALS"
_VARIABLES: Final = {
    "access_key": "ORDERLYMQ_ACCESS_KEY",
    "secret_key": "ORDERLYMQ_SECRET_KEY",
    "token": "ORDERLYMQ_SECURITY_TOKEN",
}


_TLS_VARIABLES: Final = {
    "tls_ca_file": "ORDERLYMQ_TLS_CA",
    "tls_certificate_file": "ORDERLYMQ_TLS_CERTIFICATE",
    "tls_key_file": "ORDERLYMQ_TLS_KEY",
}
_TLS_SWITCH: Final = "ORDERLYMQ_TLS"
_TLS_VERIFY_HOST: Final = "ORDERLYMQ_TLS_VERIFY_HOST"
_SWITCHES: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of requests; all fields are empty if requests are not signed."""

    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


def find_credentials(settings: ClientSettings) -> Credentials:
    """Return the credentials of a client.

    Raises:
        SettingError: There is a key without a secret, or the file cannot be used.
    """
    found = Credentials(settings.access_key, settings.secret_key, settings.token)
    if not (found.access_key or found.token):
        values = {name: os.environ.get(variable, "") for name, variable in _VARIABLES.items()}
        found = Credentials(**values)
    if not (found.access_key or found.token) and os.environ.get(FILE_VARIABLE):
        found = read_credentials(Path(os.environ[FILE_VARIABLE]))
    if found.access_key and not found.secret_key:
        raise SettingError(
            f"the access key {found.access_key!r} has no secret; set secret_key, or "
            f"{_VARIABLES['secret_key']} in the environment"
        )
    return found


def find_tls(settings: ClientSettings) -> ContextSource | None:
    """Return the source of TLS contexts for connections, None for plain connections.

    The settings apply if they switch TLS on, else ORDERLYMQ_TLS (`true`) and its files. Renewed files apply from the
    next connection on.

    Raises:
        SettingError: A file cannot be used, or a variable is neither true nor false.
    """
    if settings.use_tls:
        paths = {name: getattr(settings, name) for name in _TLS_VARIABLES}
        verify_host = settings.tls_verify_host
    elif _switch(_TLS_SWITCH):
        paths = {name: os.environ.get(variable, "") for name, variable in _TLS_VARIABLES.items()}
        verify_host = _switch(_TLS_VERIFY_HOST) is not False
    else:
        return None
    certificate, key, ca = (
        Path(paths[name]) if paths[name] else None
        for name in ("tls_certificate_file", "tls_key_file", "tls_ca_file")
    )
    try:
        return following_client(TlsFiles(certificate, key, ca), verify_host=verify_host)
    except TlsError as error:
        raise SettingError(str(error)) from error


def tls_is_set() -> bool:
    """Return whether the environment says if connections use TLS."""
    return _switch(_TLS_SWITCH) is not None


def _switch(variable: str) -> bool | None:
    """Return the value of a variable, None if it is empty or not set.

    Raises:
        SettingError: It is another word: a guess could send without TLS, or to a host that was not verified.
    """
    value = os.environ.get(variable, "").strip()
    if not value:
        return None
    if value.lower() not in _SWITCHES:
        raise SettingError(f"{variable} is {value!r}; write true or false")
    return _SWITCHES[value.lower()]


def read_credentials(path: Path) -> Credentials:
    """Read a file of credentials.

    Raises:
        SettingError: It cannot be read, or has a line of another form; the error does not show the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"the credentials {path} cannot be read: {error}") from error
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or name.strip() not in _VARIABLES:
            raise SettingError(
                f"{path}, line {number}: write access_key = ..., secret_key = ... or token = ..."
            )
        values[name.strip()] = value.strip()
    return Credentials(**values)
