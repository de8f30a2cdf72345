"""A decade is measured only after its preparing step has ended, including its work on disk."""

import asyncio
from typing import Any

import pytest
from bench.growth.dimensions import Dimension, Growing
from bench.growth.load import Load

from bench.growth import __main__ as growth


def test_a_fill_is_over_on_disk_before_messages_are_billed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replicas compact the messages of a step long after its last answer, which takes CPU time."""
    done: list[str] = []

    async def step(growing: Growing, old: int, new: int) -> Load:
        done.append("step")
        return Load(seconds=1.0)

    async def rest(cluster: object, seconds: float) -> None:
        done.append("rest")

    async def measured(cluster: object, load: Load) -> dict[str, Any]:
        done.append("measure")
        return {}

    for name, stand_in in (("rest", rest), ("measure", measured), ("kill_leader", measured)):
        monkeypatch.setattr(growth, name, stand_in)
    growing = Growing(None, None, Load())  # type: ignore[arg-type]  # no step here looks at them

    asyncio.run(growth._decade(Dimension("x", "X", (1,), step), growing, 0, 1))

    assert done == ["step", "rest", "measure", "measure"]
