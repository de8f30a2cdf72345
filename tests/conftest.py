"""What all tests share: the option that accepts new golden output, and the second try.

A test marked ``cluster`` starts real processes under real clocks, and a machine that stands still
for a second can break its assumptions without breaking a law. It gets one more try; the summary
counts and names every one, so that a test that needs it often is seen. Pure tests get none.
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the data-driven tests print into their files; review the diff",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("cluster") is not None:
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=1))


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--rewrite"))
