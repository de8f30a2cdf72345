"""Pipelines as resources: an archive is killed, paused and deleted, and still holds every message once."""

import json
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
import yaml

from e2e import stores
from e2e.machine import MachineError
from e2e.orders import Orders
from e2e.space import Json, Property, Space

pytestmark = pytest.mark.timeout(900)

ARCHIVE: Final = "pipeline/orders-archive"
DRIVER: Final = "orders-archive-pipeline-0"
_KILLS: Final = 3
# A JVM, Spark and a first batch on a busy node.
_STARTS_S: Final = 240.0
# A few batches.
_UNREACHABLE_S: Final = 6.0
# Every file of the archive at a path or an address: the range of its rows, and its checksum.
_LOOK: Final = """
import hashlib, io, json, sys
import pyarrow.parquet as pq
from pyarrow import fs
found = {}
store, root = fs.FileSystem.from_uri(sys.argv[1])
for file in store.get_file_info(fs.FileSelector(root, recursive=True)):
    words = file.path.removeprefix(root).split("/")
    if not file.path.endswith(".parquet") or any(each.startswith("_") for each in words):
        continue
    with store.open_input_stream(file.path) as stream:
        content = stream.read()
    rows = pq.read_table(io.BytesIO(content), columns=["broker", "queue_id", "queue_offset"])
    found[file.path] = {
        "queues": sorted(set(zip(*(rows.column(n).to_pylist() for n in ("broker", "queue_id"))))),
        "offsets": rows.column("queue_offset").to_pylist(),
        "sum": hashlib.sha256(content).hexdigest(),
    }
print(json.dumps(found))
"""


def _manifest(image: str, name: str = "orders-archive", **spec: Any) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "orderlymq.io/v1alpha1",
            "kind": "Pipeline",
            "metadata": {"name": name},
            "spec": {
                "clusterRef": {"name": "demo"},
                "image": image,
                "storage": {"size": "1Gi"},
                **spec,
            },
        }
    )


def _archive(image: str, **spec: Any) -> str:
    stream = {
        "type": "archive",
        "source": {"topic": "orders", "options": {"maxOffsetsPerTrigger": 800}},
        "trigger": "2s",
        "checkpoint": "checkpoint",
        "path": "archive",
    }
    return _manifest(image, **{**stream, **spec})


def _batch(space: Space) -> int:
    return int(space.must(ARCHIVE).get("status", {}).get("lastBatch", -1))


def _driver(space: Space) -> tuple[str, int]:
    """Return the UID of the driver's pod and the number of restarts of its container."""
    pod = space.must(f"pod/{DRIVER}")
    return pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]


def _files(space: Space, place: str = "/var/lib/orderlymq/archive") -> Json:
    """Read the archive in the driver's pod, which mounts its volume."""
    found: Json = json.loads(space.kubectl("exec", DRIVER, "--", "python", "-c", _LOOK, place))
    return found


def _ends(space: Space) -> dict[tuple[str, int], int]:
    """Return the end of each queue of the topic."""
    words = ("orderlymq", "topic", "show", "orders", "--output", "json")
    pod = space.leader("demo")
    text = space.kubectl(
        "exec", pod, "-c", "broker", "--", *words, "--name-server", "demo-nameserver:9876"
    )
    queues = json.loads(text)["queues"]
    return {(each["brokerGroup"], each["queue"]): each["maxOffset"] for each in queues}


def _assert_each_once(found: Json, wanted: dict[tuple[str, int], int]) -> None:
    """Check that every offset of every queue is in one file, once and in order."""
    held: dict[tuple[str, int], list[int]] = {}
    for each in found.values():
        ((broker, queue),) = each["queues"]
        assert each["offsets"] == sorted(each["offsets"])
        held.setdefault((broker, queue), []).extend(each["offsets"])
    full = {queue: list(range(end)) for queue, end in wanted.items() if end}
    assert {queue: sorted(offsets) for queue, offsets in held.items()} == full


def _settled(space: Space) -> Callable[[], bool]:
    """Return whether the archive has all messages of the topic."""
    total = sum(_ends(space).values())

    def sight() -> bool:
        offsets = space.must(ARCHIVE).get("status", {}).get("offsets", [])
        return sum(int(each["offset"]) for each in offsets) == total

    return sight


def _stop_producing(space: Space) -> None:
    space.kubectl("scale", "deployment/orders-producer", "--replicas=0")
    space.until(lambda: not space.pods("app=orders-producer"), "the producer is gone", 60)
    before: list[int] = []

    def still() -> bool:
        before.append(sum(_ends(space).values()))
        time.sleep(1)
        return len(before) > 1 and before[-1] == before[-2]

    space.until(still, "nothing is sent any more", 60)


def test_an_archive_holds_every_message_once_whatever_happens_to_its_driver(
    space: Space, orders: Orders, spark_image: str, record_property: Property
) -> None:
    """The driver's pod is killed, and the pipeline suspended, deleted and made again; published files never change."""
    space.example("quickstart.yaml")
    space.ready("cluster.orderlymq.io/demo", "topic.orderlymq.io/orders")
    space.apply(_archive(spark_image))
    orders.start(consumers=1)

    record_property("ready_s", space.ready(ARCHIVE, timeout_s=_STARTS_S))
    space.until(lambda: _batch(space) >= 2, "batches", _STARTS_S)
    for kill in range(_KILLS):
        before = _batch(space)
        space.kill(DRIVER)
        seconds = space.until(lambda: _batch(space) > before, "it goes on", _STARTS_S)  # noqa: B023 - used immediately
        record_property(f"goes_on_{kill}_s", round(seconds, 1))

    _stop_producing(space)
    space.until(_settled(space), "everything is archived", _STARTS_S)
    first = _files(space)
    _assert_each_once(first, _ends(space))
    assert len(first) > _KILLS

    # Suspended: there is no pod, and the status says so; later it continues where it was.
    space.patch(ARCHIVE, {"suspend": True})
    space.says(ARCHIVE, "Suspended")
    space.until(lambda: not space.pods("orderlymq.io/pipeline=orders-archive"), "no driver", 120)
    space.patch(ARCHIVE, {"suspend": False})
    space.says(ARCHIVE, "DriverRunning", timeout_s=_STARTS_S)

    # Deleted: only the volume stays, and a new pipeline of the same name continues with it.
    space.kubectl("delete", ARCHIVE, "--timeout=60s")
    space.until(lambda: space.get(f"pod/{DRIVER}") is None, "the driver is gone", 180)
    space.until(lambda: space.get("statefulset/orders-archive-pipeline") is None, "all is gone", 60)
    assert space.must("pvc/orders-archive-pipeline")["status"]["phase"] == "Bound"
    space.kubectl("scale", "deployment/orders-producer", "--replicas=1")
    space.apply(_archive(spark_image))
    space.says(ARCHIVE, "DriverRunning", timeout_s=_STARTS_S)
    _stop_producing(space)
    space.until(_settled(space), "everything is archived", _STARTS_S)

    last = _files(space)
    _assert_each_once(last, _ends(space))
    assert {name: each["sum"] for name, each in last.items() if name in first} == {
        name: each["sum"] for name, each in first.items()
    }
    record_property("messages", sum(_ends(space).values()))
    record_property("files", len(last))


def test_executors_in_pods_of_their_own_do_the_same(
    space: Space, spark_image: str, record_property: Property
) -> None:
    """The driver makes them with its own narrow rights; a killed one is replaced, and no message is missing."""
    space.example("quickstart.yaml")
    space.ready("cluster.orderlymq.io/demo", "topic.orderlymq.io/orders")
    executors = "app.kubernetes.io/component=executor,app.kubernetes.io/instance=orders-archive"
    _send(space, 300)
    space.apply(
        _archive(spark_image, backend="kubernetes", executors={"instances": 2, "memory": "512m"})
    )

    record_property("ready_s", space.ready(ARCHIVE, timeout_s=_STARTS_S))
    space.until(_settled(space), "everything is archived", _STARTS_S)
    space.until(lambda: len(space.pods(executors)) == 2, "two executors", _STARTS_S)
    space.kill(str(space.pods(executors)[0]["metadata"]["name"]))
    _send(space, 300)
    space.until(_settled(space), "everything is archived", _STARTS_S)

    _assert_each_once(_files(space), _ends(space))
    space.kubectl("delete", ARCHIVE, "--timeout=60s")
    space.until(lambda: not space.pods(executors), "the executors go with their driver", 180)


def test_an_archive_in_an_object_store_of_the_cluster_holds_every_message_once(
    space: Space, orders: Orders, spark_image: str, record_property: Property
) -> None:
    """The credentials are in a Secret; the driver's pod is killed once, and once the store's connections are cut."""
    if not space.machine.kind:
        pytest.skip("connections are cut at the nodes, which are reached where they are kind's")
    stores.build(space.machine)
    store = stores.Store(space)
    space.example("quickstart.yaml")
    store.start()
    space.ready("cluster.orderlymq.io/demo", "topic.orderlymq.io/orders")
    path = f"s3a://{stores.BUCKET}/archive"
    space.apply(_archive(spark_image, path=path, env=stores.ENV))
    orders.start(consumers=1)
    record_property("ready_s", space.ready(ARCHIVE, timeout_s=_STARTS_S))
    space.until(lambda: _batch(space) >= 2, "batches", _STARTS_S)

    before = _batch(space)
    space.kill(DRIVER)
    seconds = space.until(lambda: _batch(space) > before, "it goes on", _STARTS_S)
    record_property("goes_on_after_a_kill_s", round(seconds, 1))
    driver = _driver(space)
    with store.unreachable():
        time.sleep(_UNREACHABLE_S)
    before = _batch(space)
    seconds = space.until(lambda: _batch(space) > before, "it goes on", _STARTS_S)
    record_property("goes_on_after_a_cut_s", round(seconds, 1))
    last_words = space.kubectl("logs", DRIVER, "--previous", "--tail=60", check=False)
    assert _driver(space) == driver, f"requests are repeated, and the driver goes on\n{last_words}"
    _stop_producing(space)
    space.until(_settled(space), "everything is archived", _STARTS_S)

    _assert_each_once(_files(space, stores.URI.format("archive")), _ends(space))


def _finished(space: Space, name: str) -> Json:
    """Return the status of a run that has succeeded; a run in progress is Ready, too."""
    space.until(
        lambda: space.must(name).get("status", {}).get("phase") == "Finished",
        f"{name} has finished",
        _STARTS_S,
    )
    status: Json = space.must(name)["status"]
    return status


def _send(space: Space, count: int) -> None:
    words = ("orderlymq", "send", "orders", "x", "--key", "k", "--count", str(count))
    pod = space.leader("demo")
    space.kubectl(
        "exec", pod, "-c", "broker", "--", *words, "--name-server", "demo-nameserver:9876"
    )


def test_a_run_that_ends_reports_its_result_and_what_cannot_be_served_says_why(
    space: Space, spark_image: str, record_property: Property
) -> None:
    """Jobs run one after the other on one volume; a schedule runs; and conditions give the reasons of refusals."""
    image = spark_image
    space.example("quickstart.yaml")
    space.ready("cluster.orderlymq.io/demo", "topic.orderlymq.io/orders")
    _send(space, 200)
    space.apply(_archive(image, trigger="availableNow"))
    record_property("archive_s", space.ready(ARCHIVE, timeout_s=_STARTS_S))
    status = _finished(space, ARCHIVE)
    assert (status["rows"], status["lag"]) == (200, 0)
    assert "200 messages" in status["result"]
    volume = {"claimName": "orders-archive-pipeline"}
    stream = {"type": "archive", "path": "other", "checkpoint": "other"}
    lag = {"type": "lag", "topic": "orders", "groups": ["billing"]}
    space.apply(
        _manifest(image, "audit", type="order-audit", archive="archive", storage=volume),
        _manifest(image, "table", **stream, source={"topic": "orders"}, backend="sparkApplication"),
        _manifest(image, "lost", **lag, clusterRef={"name": "nobody"}),
        _manifest(image, "wrong", **stream, source={"topic": "unknown"}),
        _manifest(image, "nightly", **lag, schedule="* * * * *"),
    )

    space.says("pipeline/table", "DefinitionMissing")
    assert "nobody" in space.says("pipeline/lost", "ClusterNotFound")["message"]
    record_property("audit_s", space.ready("pipeline/audit", timeout_s=_STARTS_S))
    _finished(space, "pipeline/audit")
    said = space.says("pipeline/wrong", "DriverFailed", timeout_s=_STARTS_S)
    assert "unknown" in said["message"]
    space.until(
        lambda: "billing" in space.must("pipeline/nightly").get("status", {}).get("result", ""),
        "the scheduled run has reported its result",
        _STARTS_S,
    )
    shown = space.kubectl("get", "mqp")
    for word in ("PHASE", "BATCH", "LAG", "ROWS/S", "audit", "Finished"):
        assert word in shown, shown
    with pytest.raises(MachineError):
        space.kubectl("wait", "pipeline/lost", "--for=condition=Ready", "--timeout=1s")
