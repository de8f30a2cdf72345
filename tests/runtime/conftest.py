"""Tests of this folder run on the event loop of production and on the standard one."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each asynchronous test of this folder once per loop."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
