"""The driver in a pod: its reports while it runs, and the termination message that Kubernetes keeps."""

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from orderlymq.message import Message
from orderlymq_spark import container
from orderlymq_spark.driver import in_pod
from orderlymq_spark.jobs.catalogue import CATALOGUE
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.run.outcome import Outcome
from orderlymq_spark.run.report import CALLERS_MAX, END_MAX_BYTES, THREADS_MAX, DriverReport, serve
from orderlymq_spark.specs import SparkSettings, parse_pipeline
from orderlymq_spark.tables.parquet import published
from tests.ports import free_ports
from tests.spark.topics import Topics


def manifest(folder: Path, **spec: Any) -> dict[str, Any]:
    return {
        "kind": "Pipeline",
        "metadata": {"name": "orders-archive"},
        "spec": {
            "type": "archive",
            "source": {"topic": "orders"},
            "checkpoint": str(folder / "checkpoint"),
            "path": str(folder / "archive"),
            **spec,
        },
    }


def begun(folder: Path) -> DriverReport:
    report = DriverReport()
    report.begin(parse_pipeline(manifest(folder)))
    return report


def status_file(folder: Path, **figures: Any) -> None:
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "status.json").write_text(json.dumps(figures))


@contextmanager
def serving(report: DriverReport) -> Iterator[int]:
    server = serve(report, 0)
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def test_who_connects_and_says_nothing_keeps_no_probe_out(tmp_path: Path) -> None:
    """Law: callers use a bounded number of threads, and the oldest ones make room for new ones."""
    threads = threading.active_count()
    with serving(begun(tmp_path)) as port, ExitStack() as silent:
        callers = [
            silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            for _ in range(2 * CALLERS_MAX)
        ]

        assert get(port, "/healthz") == (200, b"ok\n")
        assert [each.recv(1) for each in callers[:CALLERS_MAX]] == [b""] * CALLERS_MAX
        wait_for(lambda: threading.active_count() <= threads + 1 + CALLERS_MAX)


def test_pages_that_wait_for_a_store_take_no_more_threads_than_there_may_be() -> None:
    """Law: when all threads wait for the store, a further caller is refused until one of them is done."""
    release, waiting = threading.Event(), threading.Semaphore(0)

    class Waiting(DriverReport):
        def facts(self) -> dict[str, Any]:
            waiting.release()
            release.wait()
            return {}

    with serving(Waiting()) as port, ExitStack() as open_:
        open_.callback(release.set)
        for _ in range(THREADS_MAX):
            caller = open_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            caller.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            assert waiting.acquire(timeout=30)
        assert get_or_none(port, "/status") is None
        release.set()

        assert caller.recv(8) == b"HTTP/1.0"
        wait_for(lambda: get_or_none(port, "/healthz") == (200, b"ok\n"))


def get_or_none(port: int, path: str) -> tuple[int, bytes] | None:
    try:
        return get(port, path)
    except OSError:
        return None


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def get(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_pages_answer_at_addresses_of_both_families(tmp_path: Path, host: str) -> None:
    """Law: a pod has an IPv4 or an IPv6 address, at which the kubelet's probes arrive."""
    with (
        serving(begun(tmp_path)) as port,
        socket.create_connection((host, port), timeout=30) as caller,
    ):
        caller.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")

        assert caller.recv(64).startswith(b"HTTP/1.0 200")


def test_the_figures_are_those_beside_the_checkpoint(tmp_path: Path) -> None:
    """The driver reports the stream's figures unchanged, and adds its own state."""
    report = begun(tmp_path)
    status_file(tmp_path, phase="Failed", last_batch=3, lag=0, rows=9, last_error="before")

    assert report.facts() == {
        "phase": "Running",
        "ready": False,
        "last_batch": 3,
        "lag": 0,
        "rows": 9,
    }


def test_the_pages_answer_before_spark_has_begun(tmp_path: Path) -> None:
    """The driver is alive from the first moment, and ready when it is at work."""
    report = begun(tmp_path)
    with serving(report) as port:
        assert get(port, "/healthz") == (200, b"ok\n")
        assert get(port, "/readyz")[0] == 503
        report.ready = True
        assert get(port, "/readyz") == (200, b"Running\n")
        assert json.loads(get(port, "/status?x")[1])["phase"] == "Running"
        assert b"python_info" in get(port, "/metrics")[1]
        assert get(port, "/other")[0] == 404


def test_the_last_word_fits_whatever_there_is_to_say(tmp_path: Path) -> None:
    """Kubernetes cuts a termination message at 4096 bytes, which would make its JSON invalid."""
    queues = {"orders": {"broker-a": {str(queue): 10**12 for queue in range(1000)}}}
    status_file(tmp_path, last_batch=8, offsets=queues)
    report = begun(tmp_path)
    report.end(Outcome("ä" * 5000, passed=False))
    end = tmp_path / "termination-log"

    report.write_end(end)

    assert len(end.read_bytes()) <= END_MAX_BYTES
    said = json.loads(end.read_text())
    assert (said["phase"], said["passed"], said["last_batch"]) == ("Finished", False, 8)
    assert said["result"].startswith("ää")


def driver(folder: Path, document: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    file = folder / "pipeline.json"
    file.write_text(json.dumps(document))
    words = ["--manifest", str(file), "--termination-log", str(folder / "end")]
    return subprocess.run(
        [sys.executable, "-m", "orderlymq_spark.driver", *words],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_manifest_that_cannot_be_used_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    """The code 2 says that another attempt would only repeat the error; the termination message names the field."""
    found = driver(tmp_path, manifest(tmp_path, codek="zstd"))

    said = json.loads((tmp_path / "end").read_text())
    assert found.returncode == 2, found.stderr
    assert said["phase"] == "Failed"
    assert "did you mean codec?" in said["last_error"]


def test_a_catalogue_that_is_away_is_asked_again(tmp_path: Path) -> None:
    """Law: the code 2 would end a Job for good, but the catalogue may answer the next attempt."""
    lake = {"name": "lake", "properties": {"uri": f"http://127.0.0.1:{free_ports(1)[0]}"}}
    document = manifest(tmp_path, format="iceberg", catalog=lake, table="shop.orders")
    del document["spec"]["path"]

    found = driver(tmp_path, document)

    assert found.returncode == 1, found.stderr
    assert "lake does not give" in json.loads((tmp_path / "end").read_text())["last_error"]


def test_a_signal_ends_a_run_that_waits(tmp_path: Path) -> None:
    """Law: a finite run reacts to SIGTERM even as the first process of a container; it ends with 1 and the reason."""
    file = tmp_path / "pipeline.json"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bootstrap = f"127.0.0.1:{silent.getsockname()[1]}"
        spec = {"type": "dead-letters", "bootstrap": bootstrap, "group": "billing"}
        file.write_text(json.dumps(manifest(tmp_path) | {"spec": spec}))
        words = ["--manifest", str(file), "--termination-log", str(tmp_path / "end")]
        with subprocess.Popen([sys.executable, "-m", "orderlymq_spark.driver", *words]) as process:
            connection, _ = silent.accept()
            with connection:
                process.terminate()
                code = process.wait(timeout=30)

    assert code == 1
    assert "stopped by a signal" in json.loads((tmp_path / "end").read_text())["last_error"]


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "mirror", "targetBootstrap": "127.0.0.1:1", "trigger": "1s"},
        {"type": "dead-letters", "group": "billing"},
    ],
)
def test_work_that_begins_without_spark_is_ready_without_it(
    tmp_path: Path, spec: dict[str, Any]
) -> None:
    """Law: a driver is ready when it works, even without Spark, because the operator asks only ready pods."""
    file, (port,) = tmp_path / "pipeline.json", free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bootstrap = f"127.0.0.1:{silent.getsockname()[1]}"
        place: dict[str, Any] = {"bootstrap": bootstrap}
        if spec["type"] == "mirror":
            place = {"source": {"topic": "orders", **place}, "checkpoint": "checkpoint"}
        file.write_text(json.dumps(manifest(tmp_path) | {"spec": spec | place}))
        words = ["--manifest", str(file), "--http-port", str(port), "--directory", str(tmp_path)]
        with subprocess.Popen([sys.executable, "-m", "orderlymq_spark.driver", *words]) as process:
            silent.settimeout(60)
            connection, _ = silent.accept()
            with connection:
                answer = get(port, "/readyz")
                process.terminate()
                process.wait(timeout=30)

    assert answer == (200, b"Running\n")


def test_who_takes_no_spark_does_not_begin_with_it() -> None:
    """Law: no driver waits to be ready for a Spark that it never starts."""
    jobs = {
        name: signature(import_module(f"orderlymq_spark.jobs.{entry.module}").run)
        for name, entry in CATALOGUE.items()
    }
    without = {name for name, found in jobs.items() if "spark" not in found.parameters}

    assert without == {"compact", "mirror"}
    assert not any(CATALOGUE[name].begins_with_spark for name in without)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_run_reports_what_it_has_done(topics: Topics, tmp_path: Path) -> None:
    """The run ends with 0 and reports the result and the checkpoint's position; so does an audit without findings."""
    topic = topics.make(queues=2)
    topics.fill(topic, [Message(topic=topic, body=b"x", key=str(n)) for n in range(30)])
    source = {"topic": topic, "bootstrap": topics.bootstrap}

    found = driver(tmp_path, manifest(tmp_path, source=source, spark={"master": "local[2]"}))

    said = json.loads((tmp_path / "end").read_text())
    assert found.returncode == 0, found.stderr
    assert (said["phase"], said["passed"], said["rows"], said["lag"]) == ("Finished", True, 30, 0)
    assert said["lag_seconds"] == 0
    stands = [offset for queue in said["offsets"][topic].values() for offset in queue.values()]
    assert sum(stands) == sum(each.size for each in published(location(tmp_path / "archive"))) == 30


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_stream_ends_well_when_it_is_asked_to(topics: Topics, tmp_path: Path) -> None:
    """Kubernetes ends the pod of an endless stream with SIGTERM: the batch is finished, and the code is 0."""
    topic = topics.make(queues=1)
    topics.fill(topic, [Message(topic=topic, body=b"x", key="k") for _ in range(5)])
    source = {"topic": topic, "bootstrap": topics.bootstrap}
    file = tmp_path / "pipeline.json"
    file.write_text(
        json.dumps(manifest(tmp_path, source=source, trigger="1s", spark={"master": "local[2]"}))
    )
    end = tmp_path / "end"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "orderlymq_spark.driver", "--manifest", str(file)),
            *("--termination-log", str(end)),
        ]
    )
    late = threading.Timer(180, process.kill)
    late.start()
    try:
        while not published(location(tmp_path / "archive")) and process.poll() is None:
            time.sleep(0.2)
        process.terminate()
        code = process.wait()
    finally:
        late.cancel()

    assert code == 0
    assert json.loads(end.read_text())["phase"] == "Finished"


EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://driver",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
    "SPARK_EXECUTOR_POD_NAME": "exec-3",
    "SPARK_JAVA_OPT_10": "-Dlast=1",
    "SPARK_JAVA_OPT_9": "-Dfirst=1",
}


def test_an_executor_is_what_spark_asks_for() -> None:
    """Java gets Spark's own options in their order, from the variables of the executor's pod."""
    found = container.executor_command(EXECUTOR, Path("/spark"))

    assert found[:5] == ["java", "-Dfirst=1", "-Dlast=1", "-Xms1024m", "-Xmx1024m"]
    assert found[found.index("-cp") + 1] == "/spark/conf:/spark/jars/*"
    options = dict(zip(found[8::2], found[9::2], strict=True))
    assert options == {
        "--driver-url": "spark://driver",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "app",
        "--hostname": "10.0.0.9",
        "--resourceProfileId": "0",
        "--podName": "exec-3",
    }


def test_a_driver_of_a_spark_operator_is_a_spark_submit_in_client_mode() -> None:
    """In cluster mode it would submit itself again."""
    found = container.driver_command({"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1"}, Path("/s"), ["a"])

    assert found == [
        *("/s/bin/spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.1"),
        *("--deploy-mode", "client", "a"),
    ]


def test_executors_in_pods_are_led_to_the_drivers_own_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark 4.1 and later give executors the driver's bind address: with 0.0.0.0 they would connect to themselves."""
    monkeypatch.setenv("POD_IP", "10.0.0.7")
    monkeypatch.setenv("POD_NAME", "orders-archive-pipeline-0")

    found = in_pod(SparkSettings(master="k8s://https://kubernetes.default.svc"))

    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "10.0.0.7"
    monkeypatch.setenv("POD_IP", "fd00::7")
    found = in_pod(SparkSettings(master="k8s://https://kubernetes.default.svc"))
    assert (found["spark.driver.host"], found["spark.driver.bindAddress"]) == (
        "[fd00::7]",
        "fd00::7",
    )
    assert in_pod(SparkSettings(master="local[2]")) == {}
