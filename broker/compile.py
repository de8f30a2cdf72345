"""
Compile the modules that every message passes through, in an installed copy of the project.

``pip install --no-deps --target DIR . && python broker/compile.py DIR``. mypyc (of the mypy that checks the types anyway)
makes C of the annotated Python, and a C compiler makes one extension of it beside the sources; nothing else
changes, and without the extension the sources run as they are. ``make compiled`` does both. ``python broker/compile.py --current
DIR`` exits with 0 if DIR was compiled from the sources as they are now, by this Python; ``--of DIGEST DIR`` compiles a DIR
that was filled from the sources of which ``--digest`` said so. ORDERLYMQ_OPT_LEVEL is how hard the C compiler tries, from 0
to 3 (default 3): with 1 it needs three quarters of the time, and programs do the same more slowly. The rules for such a module are invariants, checked by ``tests/broker/test_compile.py``.
"""

import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
# What `pip install .` copies.
SOURCES: Final = ("protocol", "broker", "client", "operator", "pipelines", "console")
STAMP: Final = ".built"

MODULES: Final = (
    "orderlymq_protocol/message/batch.py",
    "orderlymq_protocol/frame/command.py",
    "orderlymq_protocol/frame/codec.py",
    "orderlymq_protocol/message/properties.py",
    "orderlymq_protocol/message/record.py",
    "orderlymq_runtime/remoting/connectiontable.py",
    "orderlymq_runtime/remoting/connection.py",
    "orderlymq_raft/__init__.py",
    "orderlymq_raft/config.py",
    "orderlymq_raft/election.py",
    "orderlymq_raft/follower.py",
    "orderlymq_raft/log.py",
    "orderlymq_raft/membership.py",
    "orderlymq_raft/messages.py",
    "orderlymq_raft/node.py",
    "orderlymq_raft/progress.py",
    "orderlymq_raft/quorum.py",
    "orderlymq_raft/reads.py",
    "orderlymq_raft/ready.py",
    "orderlymq_raft/replication.py",
    "orderlymq_raft/dispatch.py",
    "orderlymq_raft/state.py",
    "orderlymq_raft/transfer.py",
    "orderlymq_raft/types.py",
    "orderlymq_raft/violations.py",
    "orderlymq_broker/core/requestcontext.py",
    "orderlymq_broker/core/messagedraft.py",
    "orderlymq_broker/core/entrybuilder.py",
    "orderlymq_broker/core/uncommitted.py",
    "orderlymq_broker/server/router.py",
    "orderlymq_broker/processors/dispatch.py",
    "orderlymq_broker/processors/fetch/pull.py",
    "orderlymq_broker/processors/fetch/read.py",
    "orderlymq_broker/processors/schedule/delays.py",
    "orderlymq_broker/processors/send/sends.py",
    "orderlymq_broker/replication/proposals.py",
    "orderlymq_broker/replication/role.py",
    "orderlymq_broker/replication/transport/frames.py",
    "orderlymq_broker/replication/groupcommit.py",
    "orderlymq_broker/replication/transport/links.py",
    "orderlymq_broker/replication/loop.py",
    "orderlymq_broker/replication/interfaces.py",
    "orderlymq_broker/replication/transport/server.py",
    "orderlymq_broker/replication/writer.py",
    "orderlymq_broker/state/broker.py",
    "orderlymq_broker/state/groups/offsets.py",
    "orderlymq_broker/state/statemachine.py",
    "orderlymq_broker/state/schedule/timers.py",
    "orderlymq_broker/state/send/duplicates.py",
    "orderlymq_broker/state/tables.py",
    "orderlymq_broker/state/topics/queues.py",
    "orderlymq_broker/state/topics/topics.py",
    "orderlymq_broker/store/entry.py",
    "orderlymq_broker/store/kv.py",
    "orderlymq_broker/store/layout.py",
    "orderlymq_broker/store/pendingwrites.py",
    "orderlymq_broker/store/raftlog.py",
    "orderlymq_broker/store/rocks.py",
)


def _level() -> str:
    return os.environ.get("ORDERLYMQ_OPT_LEVEL", "3")


def digest(root: Path = ROOT) -> str:
    """Return a name of the sources below *root*, this Python and the C compiler's level, whatever the dates of files."""
    found = hashlib.sha256(f"{sys.implementation.cache_tag} {_level()}\n".encode())
    paths = [
        root / "pyproject.toml",
        *(path for each in SOURCES for path in (root / each).rglob("*.py")),
    ]
    for path in sorted(paths):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        found.update(f"{content} {path.relative_to(root)}\n".encode())
    return found.hexdigest()


def is_current(directory: Path, root: Path = ROOT) -> bool:
    """Return whether *directory* was compiled from the sources below *root*."""
    try:
        return (directory / STAMP).read_text(encoding="ascii") == digest(root)
    except (OSError, UnicodeDecodeError):
        return False


def compile_in(directory: Path) -> None:
    """Compile `MODULES` in *directory*, where the packages were installed; takes about two minutes."""
    from mypyc.build import mypycify  # noqa: PLC0415 - the list above is of use without a compiler
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    os.chdir(directory)
    with tempfile.TemporaryDirectory() as scratch:
        words = ["--config-file=", "--ignore-missing-imports", f"--cache-dir={scratch}/cache"]
        extensions = mypycify([*words, *MODULES], opt_level=_level(), target_dir=scratch)
        for extension in extensions:
            # Without symbols half the size; no debugger reads mypyc's C anyway.
            extension.extra_link_args = ["-s"]
        distribution = Distribution({"name": "orderlymq", "ext_modules": extensions})
        command = build_ext(distribution)
        command.inplace = True
        command.build_temp = command.build_lib = scratch
        command.parallel = os.cpu_count()
        command.ensure_finalized()
        command.run()


def main(words: list[str]) -> None:
    """Compile in a folder, say whether it is current, or what the sources are now."""
    if words == ["--digest"]:
        sys.stdout.write(f"{digest()}\n")
        return
    *options, folder = words
    directory = Path(folder).resolve()
    if options == ["--current"]:
        sys.exit(0 if is_current(directory) else 1)
    # The folder was filled before: a source that has changed since is not in it.
    before = options[1] if options[:1] == ["--of"] else digest()
    compile_in(directory)
    (directory / STAMP).write_text(before, encoding="ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
