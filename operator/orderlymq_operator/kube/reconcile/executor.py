"""
The executor of a plan: actions of one lane in order, lanes at the same time.

Rules: an action that fails holds back the later actions of its lane only; the next reconcile decides again. Who does not
answer one request is sent no more of them: thousands of time-outs would keep that reconcile from a new leader. Each action
is carried out only while this operator leads, because a successor may have changed what it was planned from.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from orderlymq_operator.brokers.admin import AdminError, GroupInUseError, SilentError
from orderlymq_operator.kube.api import ApiError, EvictionRefusedError, must_have_read
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.reconcile.backend import KubeBackend
from orderlymq_operator.plan.actions import Action, Lane, ReportCondition, lane_of

_log = logging.getLogger(__name__)

# Requests to brokers at a time: a group commits them together, and more would only wait there.
_AT_ONCE: Final = 32


async def execute(
    backend: KubeBackend, actions: Sequence[Action], metrics: OperatorMetrics
) -> tuple[list[Exception], int]:
    """Carry out *actions*; return what failed, and how many were done that were more than reports.

    What failed or is held is named in the order of the plan: a status that names the first says the same each time.
    """
    lanes: dict[Lane, list[Action]] = {}
    for action in actions:
        if isinstance(action, ReportCondition):
            backend.reports[action.subject] = action.condition
        else:
            lanes.setdefault(lane_of(action), []).append(action)
    failed: dict[Lane, Exception] = {}
    held: dict[Lane, str] = {}
    done = 0

    async def perform(lane: Lane) -> None:
        nonlocal done
        for action in lanes[lane]:
            # Who does not answer is asked again, and has to delete it then.
            with suppress(AdminError):
                if text := await backend.used_still(action):
                    backend.in_use[lane] = text
                    return
            must_have_read()
            try:
                backend.api.must_lead()
                await backend.perform(action)
            except EvictionRefusedError as refused:
                held[lane] = str(refused)  # no failure: it is tried again later
                return
            except GroupInUseError as refused:
                backend.in_use[lane] = str(refused)  # no failure, either: its consumers come first
                return
            except (AdminError, ApiError) as error:
                if isinstance(error, SilentError):
                    backend.silent.add(error.address)
                backend.failed[lane] = str(error)
                _log.info("%s: %s", action, error)
                failed[lane] = error
                return
            _log.info("did %s", action)
            metrics.actions.labels(type(action).__name__).inc()
            done += 1

    waiting = iter(lanes)

    async def perform_next() -> None:
        for lane in waiting:
            await perform(lane)

    await asyncio.gather(*(perform_next() for _ in range(min(_AT_ONCE, len(lanes)))))
    backend.held += [held[lane] for lane in lanes if lane in held]
    return [failed[lane] for lane in lanes if lane in failed], done
