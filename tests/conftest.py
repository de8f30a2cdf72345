"""Shared parts of all tests: the option that accepts new golden output, the order, and the second try.

A test with programs of others (RocketMQ's clients, Spark) can fail because these assume a quick
machine, without any law being broken. It gets one more try; the summary counts and names every one,
so that a test that needs it often is seen. Tests of this project alone get none: they wait for what
they test, not for a first sign of it.

Things that a failed test left open are collected with that test: a socket that is found unclosed
later would fail whichever test runs then, because warnings are errors.
"""

import gc
import os
import signal
import sys
import warnings
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests import turns

# The time of an example says something of the machine, not of the rule. On CI the examples are the same each time.
# ORDERLYMQ_EXAMPLES is how many a rule gets that names no number itself.
settings.register_profile(
    "rules",
    parent=settings.get_profile("ci" if os.environ.get("CI") else "default"),
    max_examples=int(os.environ.get("ORDERLYMQ_EXAMPLES", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rules")

# A shell lets what it runs in the background ignore Ctrl-C, and the programs that tests start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the data-driven tests print into their files; review the diff",
    )


# Programs of others take part.
WITH_OTHERS = ("tests/clients/", "tests/spark/")
# Modules that take longest, longest first; `--durations=0` shows them.
LONGEST = (
    "tests/sim/test_defects.py",
    "tests/release/chart/",
    "tests/docs/test_sections.py",
    "tests/docs/test_guides.py",
    "tests/docs/test_tutorials.py",
    "tests/console/web/test_browser.py",
    "tests/console/pages/test_standstill.py",
    "tests/cluster/test_queueexpansion.py",
    "tests/console/test_troubles.py",
    "tests/operator/test_secured.py",
    "tests/operator/test_commands.py",
    "tests/operator/local/test_replicas.py",
    "tests/operator/local/test_supervisor.py",
    "tests/cluster/test_outside.py",
    "tests/broker/doctor/test_doctor.py",
    "tests/operator/kube/test_watch.py",
    "tests/operator/kube/reconcile/certificates/test_certificates.py",
    "tests/client/consumer/lanes/test_lanes.py",
    "tests/operator/kube/test_election.py",
    "tests/backup/",
    "tests/trouble/",
    "tests/cluster/",
    "tests/clients/javaclient/test_java.py",
    "tests/clients/javaclient/test_java_requests.py",
    "tests/clients/mqadmin/",
    "tests/clients/test_outside.py",
    "tests/clients/rocketmq/",
)
# Real sockets, files and clocks.
REAL_TIME = (
    "tests/broker/server/",
    "tests/broker/replication/test_snapshots.py",
    "tests/broker/replication/transport/",
    "tests/broker/store/",
    "tests/broker/test_app.py",
    "tests/client/",
    "tests/nameserver/test_app.py",
    "tests/operator/local/",
    "tests/runtime/",
    "tests/operator/kube/test_watch.py",
    "tests/operator/kube/takeover/",
    "tests/console/web/test_events.py",
)
# The part of a run in which modules that wait begin: the end belongs to short pure tests.
_EARLY = 0.85


@pytest.hookimpl(trylast=True)  # behind the selection by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    turns.take(config, items, _unit)
    waiting: dict[str, None] = {}
    others: dict[str, None] = {}
    for item in items:
        marked = any(item.get_closest_marker(name) for name in ("cluster", "spark"))
        if marked and item.nodeid.startswith(WITH_OTHERS):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=1))
        unit = _unit(item)
        if marked or unit.startswith(REAL_TIME):
            waiting.setdefault(unit)
        else:
            others.setdefault(unit)
    places = {unit: number / len(others) for number, unit in enumerate(others)}
    places |= {unit: _EARLY * number / len(waiting) for number, unit in enumerate(waiting)}
    # The longest modules begin, so that no worker is alone with one at the end. Among the rest those that wait for real
    # processes and clocks are spread, so that there is always a pure test beside them that fills the CPUs.
    items.sort(key=lambda item: (_length(item.nodeid), places[_unit(item)]))


def _unit(item: pytest.Item) -> str:
    alone = item.nodeid.startswith(
        "tests/sim/test_defects.py"
    )  # its tests take minutes and share nothing
    return item.nodeid if alone else item.nodeid.partition("::")[0]


def pytest_collection() -> None:
    # Whatever is read and made now stays.
    gc.disable()


def pytest_collection_finish() -> None:
    # The modules of all tests and their items live to the end. Each full collection would look through them again.
    gc.collect()
    gc.freeze()
    gc.enable()


def _length(test: str) -> int:
    """Return the place of a test's module among the longest, behind all of them for any other."""
    return next(
        (place for place, path in enumerate(LONGEST) if test.startswith(path)), len(LONGEST)
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    done = yield
    if item.stash.get(_FAILED, False):
        # The interpreter keeps the last traceback, and with it every frame of the test.
        sys.last_value = sys.last_traceback = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return done


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Return whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--rewrite"))
