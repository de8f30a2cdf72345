"""What all tests share: the option that accepts new golden output, and the second try.

A test that lives under real clocks (marked ``cluster`` or ``spark``, or in one of the folders of
real sockets and files below) can fail because the machine stood still for a second, without any
law being broken. It gets one more try; the summary counts and names every one, so that a test that
needs it often is seen. Pure tests get none.

What a failed test left open is collected with that test: a socket that is found unclosed later would
fail whichever test runs then, because warnings are errors.
"""

import gc
import sys
import warnings
from collections.abc import Generator

import pytest

_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the data-driven tests print into their files; review the diff",
    )


REAL_TIME = (
    "tests/broker/server/",
    "tests/broker/replication/test_snapshots.py",
    "tests/broker/replication/test_transport.py",
    "tests/broker/store/",
    "tests/broker/test_app.py",
    "tests/client/",
    "tests/nameserver/test_app.py",
    "tests/operator/local/",
    "tests/runtime/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    waiting = []
    for item in items:
        marked = any(item.get_closest_marker(name) for name in ("cluster", "spark"))
        if marked or item.nodeid.startswith(REAL_TIME):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=1))
            waiting.append(item)
    # Those that wait for real processes begin: pure tests fill the processors beside them.
    rest = set(waiting)
    items[:] = waiting + [item for item in items if item not in rest]


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
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--rewrite"))
