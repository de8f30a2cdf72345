"""A Cluster's Pipelines as an API server lists them: with what the operator wrote, or the reason why there are none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orderlymq_console.apiserver import ApiServer
from orderlymq_console.pipelines.kubernetes import ClusterPipelines
from orderlymq_console.pipelines.reports import (
    PipelineReport,
    PipelinesUnread,
    QueueReport,
    SourceReport,
    SpecReport,
)
from orderlymq_operator.resources.pipelines.pipeline import Pipeline

TOKEN = "the-token-of-the-pod"
OWN = {"name": "demo"}


def resource(name: str, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a Pipeline as the API server has it, checked by the operator's own model."""
    wanted = {
        "type": "archive",
        "source": {"topic": "orders"},
        "checkpoint": "x",
        "path": "archive",
        "clusterRef": OWN,
        **spec,
    }
    made: dict[str, Any] = {
        "apiVersion": "orderlymq.io/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {key: value for key, value in wanted.items() if value is not None},
    }
    if status is not None:
        made["status"] = status
    Pipeline.model_validate(made)
    return made


@asynccontextmanager
async def served(
    folder: Path, *items: dict[str, Any], status: int = 200, body: Any = None
) -> AsyncIterator[ClusterPipelines]:
    """An API server that accepts one token, and the files that a pod reads."""

    async def handle(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        assert request.query["limit"] == "500"
        return web.json_response({"items": items} if body is None else body, status=status)

    application = web.Application()
    application.router.add_get("/apis/orderlymq.io/v1alpha1/namespaces/shop/pipelines", handle)
    (folder / "token").write_text(TOKEN + "\n")
    async with TestServer(application) as server:
        address = str(server.make_url("")).rstrip("/")
        yield ClusterPipelines("shop", "demo", ApiServer(address, folder))


async def read(folder: Path, *items: dict[str, Any]) -> tuple[PipelineReport, ...]:
    async with served(folder, *items) as source:
        return await source.read()


async def test_what_the_operator_wrote_is_reported(tmp_path: Path) -> None:
    """Law: the status that the operator wrote is reported, with the time of its last write."""
    item = resource(
        "archive",
        {
            "phase": "Running",
            "lastBatch": 7,
            "rows": 40,
            "rowsPerSecond": 20,
            "lag": 3,
            "offsets": [{"topic": "orders", "broker": "demo-0", "queue": 1, "offset": 9}],
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "DriverRunning",
                    "message": "it runs",
                    "lastTransitionTime": "2026-11-25T20:00:00Z",
                    "observedGeneration": 1,
                }
            ],
        },
    )
    item["metadata"]["managedFields"] = [
        {"manager": "kubectl", "time": "2026-11-25T23:00:00Z"},
        {"manager": "orderlymq-operator", "subresource": "status", "time": "2026-11-25T22:00:00Z"},
    ]

    assert await read(tmp_path, item) == (
        PipelineReport(
            name="archive",
            place="Pipeline shop/archive",
            spec=SpecReport(
                type="archive",
                source=SourceReport(topic="orders"),
                checkpoint="x",
                path="archive",
                cluster_ref={"name": "demo"},
            ),
            own_cluster=True,
            phase="Running",
            changed_ms=1_795_644_000_000,
            last_batch=7,
            rows=40,
            rows_per_second=20.0,
            lag=3,
            queues=(QueueReport("orders", "demo-0", 1, 9),),
        ),
    )


async def test_an_archive_writes_to_its_folder_or_its_table(tmp_path: Path) -> None:
    """Law: an archive's target is its folder or its table, never the table that captures it."""
    iceberg: dict[str, Any] = {
        "path": None,
        "format": "iceberg",
        "catalog": {"name": "lake"},
        "table": "shop.orders",
    }
    cdc: dict[str, Any] = {
        "type": "cdc-apply",
        "format": "debezium",
        "keys": ["id"],
        "table": "orders",
    }

    found = await read(tmp_path, resource("a"), resource("b", **iceberg), resource("c", **cdc))

    assert [each.spec and each.spec.writes for each in found] == [
        "archive",
        "shop.orders",
        "archive",
    ]


async def test_pipelines_of_other_clusters_are_not_shown(tmp_path: Path) -> None:
    """Law: Pipelines of other Clusters are not shown; those that name none, or own name servers, are."""
    found = await read(
        tmp_path,
        resource("here"),
        resource("named", clusterRef={"name": "demo", "namespace": "shop"}),
        resource("other", clusterRef={"name": "another"}),
        resource("far", clusterRef={"name": "demo", "namespace": "far"}),
        resource("plain", clusterRef=None, source={"topic": "orders", "bootstrap": "ns:9876"}),
    )

    assert [each.name for each in found] == ["here", "named", "plain"]
    assert [each.own_cluster for each in found] == [True, True, None]


async def test_a_list_that_does_not_fit_one_packet_is_read_whole(tmp_path: Path) -> None:
    """Law: a list of hundreds of Pipelines is read completely."""
    items = [resource(f"archive-{number}", {"lastError": "x" * 1_000}) for number in range(500)]

    assert len(await read(tmp_path, *items)) == 500


async def test_a_pipeline_without_a_status_is_unknown(tmp_path: Path) -> None:
    (found,) = await read(tmp_path, resource("new"))

    assert (found.phase, found.unknown) == ("", "the operator has not reported it yet")
    assert (found.rows, found.lag, found.changed_ms) == (None, None, None)


@pytest.mark.parametrize(
    ("phase", "reason", "status", "state"),
    [
        ("Finished", "FindingsFound", "False", "broken"),
        ("Finished", "Finished", "True", "kept"),
        ("Scheduled", "Scheduled", "True", "kept"),
        ("Running", "Scheduled", "True", "unknown"),
        ("Failed", "DriverFailed", "False", "unknown"),
    ],
)
async def test_an_audit_is_judged_by_the_run_that_the_condition_is_about(
    tmp_path: Path, phase: str, reason: str, status: str, state: str
) -> None:
    """Law: an audit is judged by the run that its condition is about; during another run only the last sentence is known."""
    condition = {"type": "Ready", "status": status, "reason": reason, "message": "m"}
    times = {"lastTransitionTime": "2026-11-25T20:00:00Z", "observedGeneration": 1}
    item = resource(
        "audit",
        {"phase": phase, "result": "as it ended", "conditions": [{**condition, **times}]},
        type="order-audit",
        path=None,
        checkpoint=None,
    )

    (found,) = await read(tmp_path, item)

    assert found.audit is not None
    assert (found.audit.state, found.audit.text, found.audit.unknown) == (state, "as it ended", "")
    assert "its findings are on its volume" in found.audit.count.unknown


async def test_an_audit_that_has_not_ended_is_unknown(tmp_path: Path) -> None:
    item = resource("audit", {"phase": "Running"}, type="order-audit", path=None, checkpoint=None)

    (found,) = await read(tmp_path, item)

    assert found.audit is not None
    assert "no audit has finished yet" in found.audit.unknown


async def test_a_resource_in_another_form_is_unknown_and_leaves_the_others(tmp_path: Path) -> None:
    """Law: a resource of unknown form (another version) is unknown, and the others are shown."""
    odd = {"metadata": {"name": "odd"}, "spec": {"clusterRef": OWN}}

    found = await read(tmp_path, odd, resource("whole"))

    assert [(each.name, bool(each.unknown and each.spec is None)) for each in found] == [
        ("odd", True),
        ("whole", False),
    ]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (403, {"message": "pipelines is forbidden"}, r"\(403\): pipelines is forbidden"),
        (404, {}, "knows no Pipelines; install their definition"),
        (500, [], r"\(500\): "),
        (200, {"items": None}, "cannot be read"),
        (200, [], "cannot be read"),
        (200, {"items": [{}]}, "cannot be read"),
    ],
)
async def test_a_refusal_is_said(tmp_path: Path, status: int, body: Any, said: str) -> None:
    async with served(tmp_path, status=status, body=body) as source:
        with pytest.raises(PipelinesUnread, match=said):
            await source.read()


async def test_an_api_server_that_does_not_answer_is_said(tmp_path: Path) -> None:
    source = ClusterPipelines("shop", "demo", ApiServer("http://127.0.0.1:1", tmp_path))
    with pytest.raises(PipelinesUnread, match="cannot be asked"):
        await source.read()  # There is no token either.
    (tmp_path / "token").write_text(TOKEN)
    with pytest.raises(PipelinesUnread, match="cannot be asked"):
        await source.read()
