"""
`python -m orderlymq_broker --settings FILE`: run one replica until a signal stops it.

Exit codes: 0 after SIGTERM or SIGINT; 2 if it cannot start with its arguments or settings (one sentence
says what to do); 70 if the store failed; 71 if an invariant broke. After 70 and 71, start it again: it
recovers from its log.
"""

import argparse
import gc
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orderlymq_broker.app import BrokerProcess
from orderlymq_broker.processors.fetch.sql import compile_sql
from orderlymq_broker.processors.schedule.delays import parse_delay_levels
from orderlymq_broker.settings import BrokerSettings, load
from orderlymq_broker.store.kv import StoreError
from orderlymq_runtime.process import logs
from orderlymq_runtime.process.loop import run
from orderlymq_runtime.settingsfile import SettingsError

# The tail cache holds some hundred thousand small objects that live for seconds and form no cycles.
# Python's default scans all of them after every few thousand sends. Cycles are rare here
# (an exception with its traceback), so rare scans cost little memory. What survives a scan is scanned once more, with the
# survivors of the next three scans: 200,000 objects take about 20 ms, during which the event loop stands still. After
# that it is hardly ever scanned.
GC_THRESHOLDS: Final = (50_000, 3, 15_000)

_log = logging.getLogger("orderlymq_broker")

EXIT_UNUSABLE: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the broker that the command line describes and return the exit code."""
    parser = argparse.ArgumentParser(prog="orderlymq_broker", description="Run one broker replica.")
    parser.add_argument("--settings", type=Path, required=True, help="a JSON file")
    given = parser.parse_args(arguments)
    try:
        settings = load(given.settings)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_UNUSABLE
    try:
        check(settings)
    except SettingsError as error:
        sys.stderr.write(f"{given.settings}: {error}\n")
        return EXIT_UNUSABLE

    logs.configure(
        settings.log_level, settings.log_format, f"broker {settings.group}-{settings.node_id}"
    )
    try:
        code = run(_serve(settings, given.settings), close_max_s=settings.shutdown_max_ms / 1000)
        _log.info("closed, exit code %d", code)
        return code
    except StoreError as error:
        _log.error("cannot start: %s", error)
    except OSError as error:
        at = f"{error.filename}: " if error.filename else ""
        _log.error("cannot start: %s%s", at, error.strerror or error)
    return EXIT_UNUSABLE


async def _serve(settings: BrokerSettings, file: Path) -> int:
    # Building the parser takes 50 ms; do it now, so that the first such subscription does not delay a serving loop.
    compile_sql("a IS NULL")
    gc.collect()
    gc.freeze()  # modules, classes and settings stay; scanning them finds nothing
    gc.set_threshold(*GC_THRESHOLDS)
    return await BrokerProcess(settings, file).run()


def check(settings: BrokerSettings) -> None:
    """Check what a single field cannot show.

    Raises:
        SettingsError: fields contradict each other.
    """
    if settings.node_id not in settings.peers:
        raise SettingsError(
            f"node_id {settings.node_id} is not among peers {sorted(settings.peers)}; "
            "add this replica's own raft address to peers"
        )
    if settings.node_id <= 0:
        raise SettingsError(
            f"node_id {settings.node_id} is not positive; number the replicas from 1"
        )
    if len(settings.peers) > 1 and not settings.cluster_secret:
        raise SettingsError(
            "a group of several replicas needs cluster_secret_file, with which they authenticate "
            "each other; write 32 or more random characters into one file and name it in the "
            "settings of each replica"
        )
    raft = settings.raft
    if not 0 < raft.tick_ms <= raft.heartbeat_ms or raft.election_ms < 2 * raft.heartbeat_ms:
        raise SettingsError(
            f"raft.tick_ms {raft.tick_ms}, heartbeat_ms {raft.heartbeat_ms} and election_ms "
            f"{raft.election_ms} do not fit together; required: tick <= heartbeat and 2 * "
            "heartbeat <= election"
        )
    storage = settings.storage
    if storage.disk_resume_ratio > storage.disk_refuse_ratio:
        raise SettingsError(
            f"storage.disk_resume_ratio {storage.disk_resume_ratio} is above disk_refuse_ratio "
            f"{storage.disk_refuse_ratio}: sends would be refused and accepted in turns"
        )
    try:
        parse_delay_levels(settings.timers.delay_levels)
    except ValueError as error:
        raise SettingsError(f"timers.delay_levels: {error}") from error
    try:
        logging.getLevelNamesMapping()[settings.log_level.upper()]
    except KeyError as error:
        raise SettingsError(
            f"log_level {settings.log_level!r} is unknown; use DEBUG, INFO, WARNING or ERROR"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
