"""Passes over Pipelines with a small API server and drivers that answer by real HTTP, or do not."""

from collections.abc import AsyncIterator

import pytest

from orderlymq_operator.kube.errors import ApiError, ForbiddenError, RetryLaterError
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.reconcile import pipeline as module
from orderlymq_operator.kube.reconcile.pipeline import (
    ASKING_S,
    AT_WORK_S,
    WAITING_S,
)
from orderlymq_operator.kube.reconcile.status import condition_of
from orderlymq_operator.kube.resources import (
    CLUSTERS,
    PIPELINES,
    PODS,
    STATEFUL_SETS,
    Json,
)
from tests.operator.kube.reconcile.pipeline.pipelineworld import (
    NAME,
    OBJECT,
    STREAM,
    WORD,
    World,
    one_pipeline,
)
from tests.operator.kube.samples import NAMESPACE, custom


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with one_pipeline(monkeypatch) as made:
        yield made


async def test_a_new_pipeline_is_made_once_and_then_left_alone(world: World) -> None:
    """Law: one pass makes all objects; the next one changes nothing and waits for the driver."""
    assert await world.look() == AT_WORK_S
    made = world.server.writes()
    assert made[-1] == ("PATCH", f"{PIPELINES.path(NAMESPACE, NAME)}/status")
    assert world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT) is not None

    assert await world.settle() == WAITING_S
    world.server.writes()

    assert await world.look() == WAITING_S
    assert world.server.writes() == []
    assert (world.status["phase"], world.reason[1]) == ("Starting", "Progressing")


async def test_a_driver_that_runs_is_asked_and_reported(world: World) -> None:
    """Law: a running driver's figures are written to the status, and it is asked again after a while."""
    await world.settle()
    world.run_driver()
    world.driver.report = {**WORD, "offsets": {"orders": {"demo-0": {"1": 4, "0": 3}}}}

    assert await world.settle() == ASKING_S

    assert world.reason == ("True", "DriverRunning")
    status = {key: value for key, value in world.status.items() if key != "conditions"}
    assert status == {
        "phase": "Running",
        "driver": f"{OBJECT}-0",
        "claim": OBJECT,
        "lastBatch": 7,
        "rows": 1234,
        "lag": 5,
        "offsets": [
            {"topic": "orders", "broker": "demo-0", "queue": queue, "offset": 3 + queue}
            for queue in (0, 1)
        ],
        "observedGeneration": 1,
    }


async def test_a_report_of_any_length_is_read_whole(world: World) -> None:
    """Law: a report is read completely even if it needs many packets (thousands of queues)."""
    await world.settle()
    world.run_driver()
    queues = {str(queue): 10**9 + queue for queue in range(20_000)}
    world.driver.report = {**WORD, "offsets": {"orders": {"demo-0": queues}}}

    await world.settle()

    assert world.status["lastBatch"] == 7
    assert world.status["offsets"][0]["offset"] == 10**9


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(b"<html>busy</html>", id="no JSON"),
        pytest.param(b"[]", id="no report"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b" " * (2 << 20) + b"{}", id="without end"),
        pytest.param(b"", id="nothing"),
    ],
)
async def test_a_driver_that_says_nothing_of_use_keeps_its_last_figures(
    world: World, report: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: an empty or useless answer keeps the last figures and is no error."""
    await world.hear()
    monkeypatch.setattr(module, "FIGURES_S", 0.0)
    world.driver.report = report

    assert await world.settle() == ASKING_S

    assert (world.status["phase"], world.status["lastBatch"]) == ("Running", 7)
    assert world.reason == ("True", "DriverRunning")


async def test_a_report_that_is_too_long_to_be_read_is_not_passed_over(world: World) -> None:
    """Law: a report that is too long is named in the condition, because the figures stand still; a shorter one ends that."""
    await world.hear()
    queues = {str(queue): 10**12 + queue for queue in range(30_000)}
    world.driver.report = {**WORD, "offsets": {"orders": {"demo-0": queues}}}
    await world.settle()
    long = (condition_of(world.status, "Ready") or {})["message"]
    world.driver.report = WORD
    await world.settle()

    assert (
        long
        == f"{OBJECT}-0 runs; its figures are ignored, because its report has more than 524288 bytes"
    )
    assert (condition_of(world.status, "Ready") or {})["message"] == f"{OBJECT}-0 runs"


async def test_a_driver_that_does_not_answer_holds_nobody_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a pass never waits for a driver's answer, each driver has at most one open request, and earlier figures stay."""
    await world.hear()
    world.driver.report, asked = None, world.driver.asked
    monkeypatch.setattr(module, "_SOON_S", 0.05)
    monkeypatch.setattr(module, "_ANSWER_S", 3600.0)
    await world.begin_again()

    for _ in range(3):
        assert await world.settle() == ASKING_S
    assert (world.status["phase"], world.status["lastBatch"]) == ("Running", 7)
    assert world.driver.asked == asked + 1


async def test_a_late_answer_is_read_by_the_next_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: an answer that comes late is used by the next look; a busy driver may always be slow."""
    await world.settle()
    world.run_driver()
    monkeypatch.setattr(module, "_SOON_S", 0.0)
    monkeypatch.setattr(module, "FIGURES_S", 0.0)
    await world.settle()
    assert "lastBatch" not in world.status

    world.driver.report = WORD
    world.driver.end.set()
    monkeypatch.setattr(module, "_SOON_S", 60.0)
    await world.settle()

    assert (world.status["lastBatch"], world.driver.asked) == (7, 1)


async def test_a_driver_that_is_gone_is_no_error(world: World) -> None:
    """Law: a driver that cannot be reached is no error; its pod may seem ready after its node has died."""
    await world.settle()
    world.run_driver(podIP="127.0.0.254")

    assert await world.settle() == ASKING_S

    assert "lastBatch" not in world.status


async def test_a_driver_with_an_address_of_ipv6_is_asked(world: World) -> None:
    """Law: a driver with an IPv6 address is asked, without any setting."""
    await world.settle()
    world.run_driver(podIP="::1")
    world.driver.report = WORD

    await world.settle()

    assert world.status["lastBatch"] == 7


async def test_what_a_former_container_said_is_no_news_of_this_one(world: World) -> None:
    """Law: the exit of a former container is no error of the present one."""
    ended = {"exitCode": 1, "message": '{"phase": "Failed", "last_error": "disk full"}'}
    container = {"name": "driver", "state": {"running": {}}, "lastState": {"terminated": ended}}
    await world.settle()
    world.run_driver(containerStatuses=[container])
    world.driver.report = b""

    await world.settle()

    assert "lastError" not in world.status


async def test_only_a_driver_that_may_answer_is_asked(world: World) -> None:
    """Law: a driver that is not ready, has no address or has ended is not asked."""
    await world.settle()
    cases: list[Json] = [{"conditions": []}, {"podIP": ""}, {"phase": "Failed"}]
    for status in cases:
        world.run_driver(**status)
        await world.settle()

    assert world.driver.asked == 0


async def test_figures_alone_are_written_now_and_then_and_news_immediately(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: new figures alone are written rarely; a change of phase is written immediately."""
    await world.hear()
    world.server.writes()

    world.driver.report = {**WORD, "last_batch": 8}
    await world.look()
    assert world.server.writes() == []

    with monkeypatch.context() as changed:
        changed.setattr(module, "FIGURES_S", 0.0)
        await world.look()
    assert world.status["lastBatch"] == 8

    world.run_driver(conditions=[])
    assert await world.look() == WAITING_S
    assert (world.status["phase"], world.status["lastBatch"]) == ("Starting", 8)


async def test_a_driver_says_when_it_has_failed(world: World) -> None:
    """Law: the last message of a failed driver is in the status until the next driver runs."""
    word = '{"phase": "Failed", "last_error": "the disk is full", "last_batch": 3}'
    ended = {"name": "driver", "state": {"terminated": {"exitCode": 1, "message": word}}}
    await world.settle()
    world.run_driver(phase="Failed", containerStatuses=[ended])
    await world.settle()
    assert (world.status["lastError"], world.status["lastBatch"]) == ("the disk is full", 3)

    world.run_driver()
    world.driver.report = {**WORD, "phase": "Running"}
    await world.settle()

    assert "lastError" not in world.status


async def test_a_suspended_pipeline_has_no_driver_and_goes_on_when_it_may(world: World) -> None:
    """Law: suspending a Pipeline only sets its number of drivers to 0, and resuming sets it back."""
    await world.hear()

    world.want(suspend=True)
    await world.settle()
    made = world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT)
    assert made is not None
    assert made["spec"]["replicas"] == 0
    world.server.drop(PODS, NAMESPACE, f"{OBJECT}-0")
    await world.settle()
    assert (world.status["phase"], world.status["lastBatch"]) == ("Suspended", 7)
    assert "driver" not in world.status

    world.want()
    await world.settle()
    made = world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT)
    assert made is not None
    assert made["spec"]["replicas"] == 1


async def test_a_cluster_that_is_not_there_is_named_and_nothing_made(world: World) -> None:
    """Law: a Pipeline names a missing Cluster and makes nothing; it is looked at again when the Cluster comes."""
    world.server.drop(CLUSTERS, NAMESPACE, "demo")
    world.inventory.invalidate()

    assert await world.look() is None

    assert world.reason == ("False", "ClusterNotFound")
    assert world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT) is None


async def test_an_invalid_manifest_is_reported_and_what_runs_goes_on(world: World) -> None:
    """Law: an invalid manifest is reported with its field, and what runs goes on."""
    await world.settle()
    world.want(path=None)
    world.server.writes()

    assert await world.look() is None

    assert world.reason == ("False", "Invalid")
    assert [path for _, path, *_ in world.server.writes()] == [
        f"{PIPELINES.path(NAMESPACE, NAME)}/status"
    ]


@pytest.mark.parametrize("how", ["paused", "deleted", "gone"])
async def test_what_is_paused_or_goes_is_left_alone(world: World, how: str) -> None:
    """Law: a paused or deleted Pipeline is left alone; Kubernetes deletes what a deleted one owns."""
    made = custom("Pipeline", NAME, spec=STREAM)
    if how == "paused":
        made["metadata"]["annotations"] = {names.ANNOTATION_PAUSE: "true"}
    if how == "deleted":
        made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.put(made)
    if how == "gone":
        world.server.drop(PIPELINES, NAMESPACE, NAME)

    assert await world.look() is None

    assert world.server.writes() == []


async def test_what_the_api_server_refuses_is_reported_and_tried_again(world: World) -> None:
    """Law: a refusal of the API server is reported and tried again; missing rights have their own reason, figures stay."""
    text = 'statefulsets is forbidden: User "operator" cannot list resource "statefulsets"'
    world.server.refused[STATEFUL_SETS.path(NAMESPACE)] = 403, text
    with pytest.raises(ForbiddenError):
        await world.look()
    assert world.reason == ("False", "Forbidden")

    world.server.refused[STATEFUL_SETS.path(NAMESPACE)] = 422, "replicas must be a number"
    with pytest.raises(Exception, match="must be a number"):
        await world.look()
    assert world.reason == ("False", "ApiRefused")

    world.server.refused.clear()
    await world.settle()
    assert world.reason == ("False", "Progressing")


async def test_an_object_that_the_api_server_cannot_read_is_reported(world: World) -> None:
    """Law: an answer of 500 that no retry can change counts as a refusal."""
    text = (
        "failed to create typed patch object (shop/a; apps/v1, Kind=StatefulSet): duplicate entries"
    )
    world.server.refused[STATEFUL_SETS.path(NAMESPACE)] = 500, text

    with pytest.raises(ApiError, match="duplicate entries"):
        await world.look()

    assert world.reason == ("False", "ApiRefused")


async def test_an_answer_of_500_that_stays_is_reported(world: World) -> None:
    """Law: a single answer of 500 is not reported, one that comes again and again is."""
    world.server.refused[STATEFUL_SETS.path(NAMESPACE)] = 500, "the webhook does not answer"
    known = []
    for _ in range(5):
        with pytest.raises(RetryLaterError):
            await world.look()
        known.append(bool(world.status))
    assert known == [False, False, False, True, True]
    assert world.reason == ("False", "ApiRefused")

    world.server.refused.clear()
    await world.settle()
    assert world.reason == ("False", "Progressing")


async def test_an_api_server_that_is_away_is_no_news_of_a_pipeline(world: World) -> None:
    """Law: while the API server is away nothing is reported (nothing could be written); the caller tries again."""
    world.server.refused[PODS.path(NAMESPACE)] = 503, "etcd is away"

    with pytest.raises(RetryLaterError):
        await world.look()

    assert world.status == {}


async def test_a_pipeline_that_runs_costs_two_lists_a_look(world: World) -> None:
    """Law: a running Pipeline costs two lists per look (pods and StatefulSets); the rest is read once a minute."""
    await world.hear()
    await world.look()
    world.server.asked.clear()

    assert await world.look() == ASKING_S

    read = [path.rpartition("/")[2] for method, path, *_ in world.server.asked if method == "GET"]
    assert sorted(read) == ["pods", "statefulsets"]
