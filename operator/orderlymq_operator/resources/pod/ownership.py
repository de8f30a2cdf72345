"""
The parts of a pod that the operator owns: a template that names one of them is refused.

Pure. A test compares the lists with the pods that the operator makes.
"""

from collections.abc import Iterable
from typing import Final

OWN_PREFIX: Final = "orderlymq.io/"
OWN_LABELS: Final = (
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/component",
    "app.kubernetes.io/managed-by",
    # Set by Kubernetes' StatefulSets.
    "apps.kubernetes.io/pod-index",
    "controller-revision-hash",
    "statefulset.kubernetes.io/pod-name",
)
# Including the pods that restore a backup; the lists below include them too.
OWN_CONTAINERS: Final = ("broker", "name-server", "restore")
OWN_PORTS: Final = (9876, 10909, 10911, 12910, 13910)
OWN_PORT_NAMES: Final = ("remoting", "remoting-old", "raft", "http")
OWN_VOLUMES: Final = (
    *("data", "tmp", "settings", "token", "operator", "identity"),
    *("tls", "internal-tls", "pages-token", "backups"),
)
# For listeners: their ports and their key pairs.
OWN_PORT_PREFIX: Final = "outside-"
OWN_VOLUME_PREFIX: Final = "listener-"
# HOME and PATH belong to the image. The variables of Python, glibc and OpenSSL would change which code the programs
# run, or write TLS session keys to a file.
OWN_VARIABLES: Final = ("POD_NAME", "HOME", "PATH", "GCONV_PATH", "SSLKEYLOGFILE")
OWN_VARIABLE_PREFIXES: Final = (
    *("ORDERLYMQ_", "PYTHON", "KUBERNETES_"),
    *("LD_", "GLIBC_", "OPENSSL_"),
)
# Including everything below them; nothing may be mounted over them either.
OWN_PATHS: Final = (
    "/backups",
    "/var/lib/orderlymq",
    "/etc/orderlymq",
    "/etc/orderlymq-identity",
    "/etc/orderlymq-internal-tls",
    "/etc/orderlymq-listeners",
    "/etc/orderlymq-operator",
    "/etc/orderlymq-pages",
    "/etc/orderlymq-tls",
    "/opt/orderlymq",
    "/run/secrets/kubernetes.io",
    "/tmp",  # noqa: S108 - of the container
    "/var/run/secrets/kubernetes.io",
)


class OwnedByOperatorError(ValueError):
    """A pod template names a part that the operator owns.

    Args:
        what: the kind of part, such as "label".
        name: its name.
        advice: what to do instead.
    """

    def __init__(self, what: str, name: str, advice: str) -> None:
        super().__init__(f"{what} {name!r} is set by the operator; {advice}")


def is_own_volume(name: str) -> bool:
    """Return whether the operator makes a volume of this name."""
    return name in OWN_VOLUMES or name.startswith(OWN_VOLUME_PREFIX)


def is_own_port(name: str) -> bool:
    """Return whether the operator's containers may have a port of this name."""
    return name in OWN_PORT_NAMES or name.startswith(OWN_PORT_PREFIX)


def words(names: Iterable[str | int]) -> str:
    """Return *names* as a CEL list."""
    return str(list(names))


def not_own(names: str, prefixes: Iterable[str]) -> str:
    """Return the CEL expression that `name` is not the operator's."""
    begins = "".join(f" && !name.startsWith('{prefix}')" for prefix in prefixes)
    return f"!(name in {names}){begins}"
