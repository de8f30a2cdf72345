"""A program started once more in its own namespaces: network, mounts and process ids."""

import os
import shutil
import subprocess
import sys
from typing import Final

_INSIDE: Final = "NEMESIS_INSIDE"
_UNSHARE: Final = (
    *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("--propagation", "private"),
)


def is_inside() -> bool:
    """Return whether this process was started by `enter`."""
    return _INSIDE in os.environ


def has_namespaces() -> bool:
    """Return whether this process has its own namespaces."""
    return os.environ.get(_INSIDE) == "namespaces"


def enter(*words: str, bare: bool = False) -> int:
    """Run ``python -m`` with *words* inside namespaces if the machine allows it; return its exit code."""
    able = [] if bare else _able()
    if not able:
        say("no namespaces here (unshare and ip make them): no faults of networks and disks")
    environment = {**os.environ, _INSIDE: "namespaces" if able else "bare"}
    command = [*able, sys.executable, "-m", *words]
    return subprocess.run(command, env=environment, check=False).returncode


def _able() -> list[str]:
    # In a new network even the loopback is down until ip brings it up.
    if not all(map(shutil.which, ("unshare", "ip"))):
        return []
    for words in (_UNSHARE, (*_UNSHARE, "--map-root-user")):
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            return list(words)
    return []


def say(text: str) -> None:
    """Print a line immediately."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
