"""The conditions of a run that readers of its figures need: processor, Python and its build, scheduling groups."""

import platform
import sys
import sysconfig
from pathlib import Path
from typing import Final

_AUTOGROUP: Final = Path("/proc/sys/kernel/sched_autogroup_enabled")
#: The build options that make an interpreter a third faster or more.
_OPTIMISED: Final = ("--enable-optimizations", "--with-lto")


def processor() -> str:
    """Return the processor's model name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def python() -> str:
    """Return the version and build of this Python."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return f"{platform.python_version()}, {platform.python_compiler()}, {built(arguments, sys.base_prefix)}"


def built(arguments: str, prefix: str) -> str:
    """Describe the build of a Python, from its ``configure`` arguments and its folder."""
    flags = [each for each in _OPTIMISED if each in arguments]
    if flags:
        return f"configured with {' '.join(f'`{each}`' for each in flags)}"
    if prefix == "/usr":
        # A distribution optimises in its own way, which the arguments do not show.
        return f"as {platform.freedesktop_os_release()['NAME']} builds it"
    return f"configured without `{_OPTIMISED[0]}`"


def scheduling(switch: Path = _AUTOGROUP) -> str:
    """Describe whether the processes of different nodes share one scheduling group."""
    if not switch.exists():
        return "this Linux has no autogroup, so all processes share one scheduling group"
    if switch.read_text().strip() == "0":
        return "Linux' autogroup is off, so all processes share one scheduling group"
    return "Linux' autogroup is on, so each node has its own scheduling group, as in a container"
