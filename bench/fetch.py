"""
Get and build what the comparison needs: ``python -m bench.fetch [--peers ...]``, once.

The load program and the jars of peers come from Maven, NATS from the Go module proxy. RabbitMQ is a package of
the distribution and stays the reader's own choice to install; a peer that is not there is left out with a word.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.peers import kafka, nats, rocketmq, rocketmq5
from bench.peers.nodes import HERE

PROGRAM = HERE.parent / "java"
#: The folders of jars, by system; the folder name has the version, so that a newer version gets a new folder.
LIBRARIES = {
    "rocketmq": rocketmq.LIBRARY,
    "rocketmq5": rocketmq5.LIBRARY,
    "kafka": kafka.LIBRARY,
}
ATTEMPTS = 3  # a registry may drop a connection; earlier downloads are kept


def load_program() -> None:
    """Build bench/java unless the current sources are already built."""
    sources = [PROGRAM / "pom.xml", *(PROGRAM / "src").rglob("*.java")]
    stamp = PROGRAM / "target" / "built"
    if not stamp.exists() or stamp.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        # Otherwise the jar of an older version would stay next to the newer one.
        shutil.rmtree(stamp.parent, ignore_errors=True)
        _run(["mvn", "-q", "-B", "package"], PROGRAM)
        stamp.touch()


def peers(names: Sequence[str]) -> None:
    """Fetch the named peers."""
    systems = {name.partition("-")[0] for name in names}
    for name in systems & LIBRARIES.keys():
        if not LIBRARIES[name].exists():
            _run(["mvn", "-q", "-B", "package"], HERE / name)
    if "nats" in systems and not nats.SERVER.exists():
        module = f"github.com/nats-io/nats-server/v2@v{nats.VERSION}"
        _run(["go", "install", module], HERE, GOBIN=str(nats.SERVER.parent))


def _run(command: list[str], folder: Path, **environment: str) -> None:
    if shutil.which(command[0]) is None:
        print(f"{command[0]} is not installed: {folder.name} stays unbuilt", file=sys.stderr)
        return
    print(f"{folder.name}: {' '.join(command)}", file=sys.stderr)
    for attempt in range(ATTEMPTS):
        if subprocess.run(command, cwd=folder, env={**os.environ, **environment}).returncode == 0:  # noqa: PLW1510
            return
        time.sleep(2 * attempt)
    print(f"{folder.name} could not be fetched: it is left out", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", nargs="*", default=[*LIBRARIES, "nats"])
    given = parser.parse_args()
    load_program()
    peers(given.peers)


if __name__ == "__main__":
    main()
