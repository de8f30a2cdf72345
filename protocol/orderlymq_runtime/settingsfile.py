"""
The settings file with which a server process is started: JSON of one class of settings.

Rule: each error in it, or in the key material that it names, is one sentence that begins with its path.
"""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec

from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_runtime.pages.token import PageGuard, PageToken, PageTokenError
from orderlymq_runtime.process.ending import SERVER_CLOSE_MAX_MS
from orderlymq_runtime.remoting.outside import ListenerError, OutsideListeners, check_listeners
from orderlymq_runtime.security.cleartext import stays_here
from orderlymq_runtime.security.clustersecret import ClusterSecretError, read_cluster_secret
from orderlymq_runtime.security.tls import TlsError, TlsSettings
from orderlymq_runtime.sockets.addresses import join_address

Positive: TypeAlias = Annotated[int, msgspec.Meta(gt=0)]


class ServerAddress(msgspec.Struct, frozen=True):
    """A host name or IP and a TCP port; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_address(self.host, self.port)


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Common settings of every server of a cluster.

    Attributes:
        http: address of /healthz, /readyz, /metrics and /status; without it there are no such pages.
        listeners: further listeners, for clients of other networks.
        tls: whether clients may or must speak TLS.
        cluster_secret_file: the file with the cluster's secret, by which its processes recognize each other.
        pages_token_file: the file with the token that /status and /metrics require; without it they require none.
        cluster_secret: the content of that file, read with the settings; a settings file does not hold it.
        shutdown_max_ms: how long the shutdown may take from SIGTERM on, even if something hangs.
    """

    http: ServerAddress | None = None
    listeners: OutsideListeners = msgspec.field(default_factory=list)
    tls: TlsSettings = TlsSettings()
    cluster_secret_file: Path | None = None
    cluster_secret: bytes = b""
    pages_token_file: Path | None = None
    shutdown_max_ms: Positive = SERVER_CLOSE_MAX_MS
    log_format: Literal["text", "json"] = "text"

    def pages(self, host: str) -> PageGuard:
        """Return who may ask for the HTTP pages at *host*, and how.

        Raises:
            TlsError: a file cannot be used.
            PageTokenError: the token file cannot be used, or neither TLS nor loopback would protect the token.
        """
        if self.pages_token_file is None:
            return PageGuard(self.tls.pages())
        if self.tls.mode == "disabled" and not stays_here(host):
            raise PageTokenError(
                f"pages_token_file requires a token at {host}, where it would be sent "
                "unencrypted; set tls.mode to permissive or enforcing, or listen on 127.0.0.1"
            )
        return PageGuard(self.tls.pages(), PageToken(self.pages_token_file))

    def __repr__(self) -> str:
        # Settings are shown in logs and errors; the secret must not be.
        shown = [
            f"{name}={getattr(self, name)!r}"
            for name in self.__struct_fields__
            if name != "cluster_secret"
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


Settings = TypeVar("Settings", bound=ServerSettings)


class SettingsError(ValueError):
    """The settings cannot be used; the text names the field."""


def read_settings(path: Path, kind: type[Settings]) -> Settings:
    """Read settings from a JSON file, and the secret that they name.

    Raises:
        SettingsError: the file is missing or not JSON, a field has a wrong name, type or range, or the
            key material or secret cannot be used.
    """
    try:
        settings = msgspec.json.decode(path.read_bytes(), type=kind, dec_hook=_decode_path)
    except OSError as error:
        raise SettingsError(
            f"{path}: {error.strerror}; give the path of a settings file"
        ) from error
    except UNREADABLE as error:
        raise SettingsError(f"{path}: {error}") from error
    if settings.cluster_secret:
        raise SettingsError(
            f"{path}: the secret of the cluster must be in its own file; name the file in "
            "cluster_secret_file"
        )
    try:
        settings.tls.server()
        check_listeners(settings.listeners)
        if settings.http is not None:
            settings.pages(settings.http.host)
        return _with_cluster_secret(settings)
    except (TlsError, ClusterSecretError, PageTokenError, ListenerError) as error:
        raise SettingsError(f"{path}: {error}") from error


def _with_cluster_secret(settings: Settings) -> Settings:
    if settings.cluster_secret_file is None:
        return settings
    secret = read_cluster_secret(settings.cluster_secret_file)
    return msgspec.structs.replace(settings, cluster_secret=secret)


def _decode_path(kind: type, value: object) -> object:
    # msgspec does not know paths; values of its other types never come here.
    if isinstance(value, str):
        return kind(value)
    raise TypeError(f"expected a path, got {value!r}")
