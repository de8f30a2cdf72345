"""
Carries out a plan: what belongs together in order, what does not at the same time.

Rule: an action that fails holds back what comes after it in its wave only; the next pass decides anew.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from orderlymq_operator.actions import (
    Action,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    DeleteUser,
    PutOrderConfig,
    ReportCondition,
    SetGroup,
    SetUser,
    UpdateTopic,
)
from orderlymq_operator.brokeradmin import AdminError
from orderlymq_operator.kube.api import ApiError
from orderlymq_operator.kube.backend import KubeBackend
from orderlymq_operator.kube.metrics import OperatorMetrics

_log = logging.getLogger(__name__)

# Requests to brokers at a time: a group commits them together, and more would only wait there.
_AT_ONCE: Final = 32
# Actions about different objects: their order among each other does not matter, that of the waves does. The
# queue list of an ordered topic is published before its first queue exists.
_WAVES: Final[tuple[tuple[type[Action], ...], ...]] = (
    (PutOrderConfig,),
    (CreateTopic, UpdateTopic),
    (SetGroup, SetUser),
    (DeleteTopic, DeleteGroup, DeleteUser),
)
_WAVED: Final = tuple(kind for wave in _WAVES for kind in wave)


async def perform_all(
    backend: KubeBackend, actions: Sequence[Action], metrics: OperatorMetrics
) -> tuple[list[Exception], int]:
    """Carry out *actions*; return what failed, and how many were more than reports."""
    failed: list[Exception] = []
    gate = asyncio.Semaphore(_AT_ONCE)

    async def perform(action: Action) -> bool:
        async with gate:
            try:
                await backend.perform(action)
            except (AdminError, ApiError) as error:
                _log.info("%s: %s", action, error)
                failed.append(error)
                return False
        if not isinstance(action, ReportCondition):
            _log.info("did %s", action)
            metrics.actions.labels(type(action).__name__).inc()
        return True

    for wave in _WAVES:
        chosen = [action for action in actions if isinstance(action, wave)]
        await asyncio.gather(*map(perform, chosen))
    for action in actions:
        if not isinstance(action, _WAVED) and not await perform(action):
            break
    # Reports are about what was found and cannot fail.
    for action in actions:
        if isinstance(action, ReportCondition):
            await backend.perform(action)
    return failed, sum(not isinstance(action, ReportCondition) for action in actions)
