"""
The executor of a plan: runs the actions of one lane in order, and lanes in parallel.

Rules: a failed action stops only the later actions of its lane; the next reconcile decides again. A process that does
not answer one request gets no further requests, because thousands of timeouts would delay the reconcile that finds a
new leader. Each action runs only while this operator leads, because a successor may have changed the state on which the
plan is based.
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

# Requests to brokers at the same time: a raft group commits them together, and more would only wait there.
_AT_ONCE: Final = 32


async def execute(
    backend: KubeBackend, actions: Sequence[Action], metrics: OperatorMetrics
) -> tuple[list[Exception], int]:
    """Execute *actions*; return the failures, and the number of actions done except reports.

    Failures and held pods are in the order of the plan, so that a status that names the first one stays the same.
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
            # If the broker does not answer, ignore that: the deletion below sends a request again.
            with suppress(AdminError):
                if text := await backend.used_still(action):
                    backend.in_use[lane] = text
                    return
            must_have_read()
            try:
                backend.api.must_lead()
                await backend.perform(action)
            except EvictionRefusedError as refused:
                held[lane] = str(refused)  # not a failure: a later reconcile tries again
                return
            except GroupInUseError as refused:
                backend.in_use[lane] = str(refused)  # not a failure: it waits for the consumers
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
