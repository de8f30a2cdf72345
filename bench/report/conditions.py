"""The conditions of a run that a reader of its figures has to know: processor, Python and its build, scheduling groups."""

import platform
import sys
import sysconfig
from pathlib import Path
from typing import Final

_AUTOGROUP: Final = Path("/proc/sys/kernel/sched_autogroup_enabled")
#: What makes an interpreter a third faster or more.
_OPTIMISED: Final = ("--enable-optimizations", "--with-lto")


def processor() -> str:
    """Return the name that the processor gives itself."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def python() -> str:
    """Return the version of this Python, and who built it how."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return f"{platform.python_version()}, {platform.python_compiler()}, {built(arguments, sys.base_prefix)}"


def built(arguments: str, prefix: str) -> str:
    """Say how a Python was built, by the arguments of its ``configure`` and its folder."""
    flags = [each for each in _OPTIMISED if each in arguments]
    if flags:
        return f"configured with {' '.join(f'`{each}`' for each in flags)}"
    if prefix == "/usr":
        # A distribution optimises by rules of its own, which no argument shows.
        return f"as {platform.freedesktop_os_release()['NAME']} builds it"
    return f"configured without `{_OPTIMISED[0]}`"


def scheduling(switch: Path = _AUTOGROUP) -> str:
    """Say whether processes of different nodes are in one scheduling group."""
    if not switch.exists():
        return "this Linux has no autogroup, so all processes share one scheduling group"
    if switch.read_text().strip() == "0":
        return "Linux' autogroup is off, so all processes share one scheduling group"
    return (
        "Linux' autogroup is on, so each node has a scheduling group of its own, as in a container"
    )
