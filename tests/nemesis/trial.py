"""
``python -m tests.nemesis.trial``: test whether the faults work, and print the observations as JSON.

A nemesis whose cuts do not cut finds nothing and looks like good news. Runs inside namespaces (``namespaces.py``);
``test_trial.py`` judges the output.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.nemesis.ground import ioerrors, namespaces
from tests.nemesis.ground.disks import Disk, can_mount
from tests.nemesis.ground.ground import CLIENTS, PORT, GroundError, Namespaces, run
from tests.nemesis.ground.ioerrors import IoErrors

_SERVE = """
import socket, sys
server = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(sys.argv[2].encode())
    connection.close()
"""
_ASK = """
import socket, sys, time
began = time.monotonic()
said = socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.6).recv(100).decode()
print(time.monotonic() - began, said)
"""
_WRITE = """
import os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(file, b"x")
os.fsync(file)
"""


def _try_network() -> dict[str, object]:
    ground = Namespaces(2)
    servers = []
    for node in (1, 2):
        words = [*ground.within(node), sys.executable, "-c", _SERVE, str(PORT), f"node {node}"]
        server = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert server.stdout is not None
        server.stdout.readline()
        servers.append(server)

    def ask(who: int | str, host: str) -> tuple[str, float]:
        words = [*ground.within(who), sys.executable, "-c", _ASK, host, str(PORT)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        took_s, _, said = done.stdout.strip().partition(" ")
        return said or "nothing", float(took_s or 0)

    host = ground.place(1).host
    seen: dict[str, object] = {"open": ask(2, host)[0]}
    ground.cut([2], [1])
    seen["cut"] = ask(2, host)[0]
    ground.heal([1, 2])
    seen["healed"] = ask(2, host)[0]
    ground.slow(1, 2, delay_s=0.1, jitter_s=0.0, loss=0.0)
    seen["slow"], seen["slow_s"] = ask(2, host)
    ground.slow(1, 2, delay_s=0.0, jitter_s=0.0, loss=1.0)
    seen["lossy"] = ask(2, host)[0]
    ground.unslow()
    seen["direct again"] = ask(2, host)[0]
    for node in (1, 2):
        ground.point(node)
        seen[f"service at {node}"] = ask(CLIENTS, ground.address[0])[0]
    for server in servers:
        server.kill()
        server.wait()
    ground.close()
    return seen


def _try_disk(scratch: Path) -> dict[str, object]:
    disk = Disk(scratch / "disk.img", scratch / "disk")
    disk.mount()
    synced = os.open(disk.where / "synced", os.O_CREAT | os.O_WRONLY)
    os.write(synced, b"kept")
    os.fsync(synced)
    os.close(synced)
    (disk.where / "unsynced").write_text("lost")
    disk.lose_power(disk.keep_what_is_synced())
    unsynced = disk.where / "unsynced"
    seen: dict[str, object] = {
        "synced": (disk.where / "synced").read_text(),
        "unsynced": unsynced.read_text() if unsynced.exists() else "",
    }
    disk.fill()
    seen["full"] = _error(lambda: (disk.where / "more").write_bytes(bytes(1 << 22)))
    disk.empty()
    seen["empty"] = _error(lambda: (disk.where / "more").write_bytes(bytes(1 << 22)))
    disk.fill()
    os.sync()  # so that the copy is full, too
    copy = disk.keep_what_is_synced()
    disk.empty()
    disk.lose_power(copy)
    seen["emptied while without power"] = _error(
        lambda: (disk.where / "again").write_bytes(bytes(1 << 22))
    )
    disk.unmount()
    return seen


def _error(work: Callable[[], object]) -> str:
    try:
        work()
    except OSError as error:
        return error.strerror or "error"
    return "fine"


def _try_io_errors(scratch: Path) -> dict[str, object]:
    library = ioerrors.build(scratch)
    if library is None:
        return {}
    data = scratch / "data"
    data.mkdir()
    errors = IoErrors(library, scratch / "switch", data)

    def write(where: Path) -> str:
        words = [sys.executable, "-c", _WRITE, str(where / "file")]
        environment = {**os.environ, **errors.environment()}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        return done.stderr.strip().splitlines()[-1] if done.returncode else "fine"

    seen: dict[str, object] = {"before": write(data)}
    errors.begin()
    seen["broken"] = write(data)
    seen["elsewhere"] = write(scratch)
    errors.end()
    seen["after"] = write(data)
    return seen


def main() -> int:
    """Try what this machine can do."""
    if not namespaces.is_inside():
        return namespaces.enter("tests.nemesis.trial")
    seen: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="nemesis-") as name:
        scratch = Path(name)
        if namespaces.has_namespaces():
            try:
                run("ip", "link", "set", "lo", "up")
                seen["network"] = _try_network()
            except (GroundError, OSError) as error:
                namespaces.say(f"no network faults here: {error}")
            if can_mount(scratch):
                seen["disk"] = _try_disk(scratch)
        seen["io errors"] = _try_io_errors(scratch)
    namespaces.say(json.dumps(seen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
