"""
The test that runs each command block and each program of the pages, in CI.

A block is run by a reader of its page or section (`FOLLOWED`), or typed line by line at a real Kubernetes (the calls of
`types` in `e2e/`). Otherwise `ELSEWHERE` names it by its first line, with its runner and the reason why it is not run
unchanged. A block without any of these fails `test_runners.py`. A runner is a file and a name in it, mostly of a test.
"""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]

TUTORIALS: Final = "tests/docs/test_tutorials.py::test_a_tutorial_does_what_it_says"
GUIDES: Final = "tests/docs/test_guides.py::test_a_guide_does_what_it_says"
SECTIONS: Final = "tests/docs/test_sections.py::test_what_a_guide_says_of_a_laptop_is_what_happens"
SHARED: Final = "tests/docs/test_tutorials.py::test_pages_that_share_a_cluster_do_what_they_say"
BUCKET: Final = "tests/docs/test_tutorials.py::test_a_backup_goes_to_a_bucket_as_the_guide_says"
FRAGMENTS: Final = "tests/docs/test_fragments.py::test_every_program_of_the_guide_for_python"
_ON_KIND: Final = "e2e/scenarios/test_guides.py::test_the_tutorial_goes_as_it_says"

# By page and section; a page without a section is followed as a whole.
FOLLOWED: Final[dict[tuple[str, str], str]] = {
    ("README.md", "Three ways in"): SHARED,
    ("docs/tutorials/laptop.md", ""): TUTORIALS,
    ("docs/tutorials/python.md", ""): TUTORIALS,
    ("docs/tutorials/java.md", ""): "tests/clients/test_tutorial.py::test_the_java_tutorial",
    ("docs/tutorials/spark.md", ""): "tests/spark/test_tutorial.py::test_the_spark_tutorial",
    ("docs/tutorials/kubernetes.md", "Make a cluster"): _ON_KIND,
    ("docs/tutorials/kubernetes.md", "Run an application"): _ON_KIND,
    ("docs/tutorials/kubernetes.md", "Kill a consumer"): _ON_KIND,
    ("docs/howto/backup.md", "Try it"): SECTIONS,
    ("docs/howto/backup.md", "Keep backups in S3"): BUCKET,
    ("docs/howto/backup.md", "On a schedule"): BUCKET,
    ("docs/howto/backup.md", "Restore one replica by hand"): SHARED,
    ("docs/howto/canary.md", "On a laptop"): SHARED,
    ("docs/howto/console.md", ""): SHARED,
    ("docs/howto/dead-letters.md", "Move one dead letter"): SECTIONS,
    ("docs/howto/delays.md", "Try it"): SECTIONS,
    ("docs/howto/faststream.md", ""): GUIDES,
    ("docs/howto/filters.md", "Try it"): SECTIONS,
    ("docs/howto/filters.md", "SQL92"): FRAGMENTS,
    ("docs/howto/measure.md", ""): GUIDES,
    ("docs/howto/plan.md", "On a laptop"): SECTIONS,
    ("docs/howto/python.md", ""): FRAGMENTS,
    ("docs/howto/replace-node.md", "On a laptop"): SECTIONS,
    ("docs/howto/security.md", "TLS"): GUIDES,
    ("docs/howto/taskiq.md", ""): GUIDES,
    ("docs/howto/traces.md", ""): SECTIONS,
    ("docs/howto/transactions.md", ""): FRAGMENTS,
    (
        "docs/howto/transactions.md",
        "A message that depends on a local transaction",
    ): SHARED,
    ("docs/howto/upgrade.md", "On a laptop"): SECTIONS,
    ("docs/explanation/lanes.md", "In Python and at the command"): SHARED,
}


def places(runner: str) -> list[tuple[Path, str]]:
    """Return the pages and sections that a test follows."""
    return [
        (ROOT / page, section) for (page, section), found in FOLLOWED.items() if found == runner
    ]


def each(runner: str) -> Iterable[object]:
    """Return the pytest parameters of a test that follows each of its places."""
    return [pytest.param(*place, id=place[0].stem) for place in places(runner)]


class Runner(NamedTuple):
    """The test that comes nearest to a block, and the reason why the block is not run unchanged."""

    where: str
    why: str


_CHART: Final = Runner("e2e/installed.py::helm", "the fixtures of the scenarios install it")
_GROWS: Final = Runner(
    "e2e/scenarios/changes/test_queue_expansion.py::test_a_topic_grows_under_load",
    "the scenario does it to the topic of its orders, under load",
)
_RETAINED: Final = Runner(
    "e2e/scenarios/changes/test_retained.py::test_a_deleted_cluster_comes_back_with_everything",
    "the scenario does it in a namespace of its own, while orders flow",
)
_WITHDRAWN: Final = (
    "tests/cluster/test_lostgroup.py::test_a_group_that_is_lost_for_good_is_withdrawn"
)
_SPARK: Final = "its frame and session are the reader's own"
_RUNS: Final = "its output is that of 6,000 messages; the job is run on others"
_PIPELINES: Final = "docs/howto/pipelines.md"
_NUMBERS: Final = "CI runs it with other numbers"
_SUBMITTED: Final = Runner(
    "tests/spark/test_standalone.py::test_a_submitted_program",
    "its ports are free ones, and its packages are zipped from the sources",
)
ELSEWHERE: Final[dict[tuple[str, str], Runner]] = {
    ("README.md", "make run"): Runner(
        TUTORIALS,
        "it installs and compiles first; the tutorial runs the same cluster and demo",
    ),
    ("README.md", "docker build -t orderlymq:dev ."): Runner(
        "e2e/scenarios/test_quickstart.py::test_the_quick_start_is_ready",
        "the fixtures of the scenario build, load and install",
    ),
    ("README.md", "python3 -m venv .venv && .venv/bin/pip install ."): Runner(
        ".ci/run::make .venv/.dev", "CI installs the same checkout with the extras of its tests"
    ),
    ("README.md", "import asyncio"): Runner(
        "tests/client/test_examples.py::test_a_program_that_ends", "it is the file quickstart.py"
    ),
    ("charts/orderlymq/README.md", "helm install orderlymq . --wait"): _CHART,
    ("docs/tutorials/kubernetes.md", "kind create cluster"): _CHART,
    ("docs/tutorials/kubernetes.md", "kubectl delete -f examples/orders-app.yaml"): Runner(
        "e2e/scenarios/test_guides.py::Clean up",
        "its first line is run; the fixtures uninstall, and delete the cluster",
    ),
    ("docs/howto/dead-letters.md", "orderlymq group parked billing"): Runner(
        "tests/cluster/test_parkedkeys.py::test_a_parked_key_waits_for_its_release",
        "it needs a listener that has failed sixteen times",
    ),
    ("docs/howto/lost-majority.md", "orderlymq backup salvage"): Runner(
        "tests/backup/test_salvage.py::test_what_the_newest_survivor_has_goes_on",
        "it needs disks of a cluster whose majority is gone",
    ),
    **{
        ("docs/howto/lost-majority.md", opening): Runner(where, "it needs a group that is lost")
        for opening, where in (
            ("kubectl exec -it demo-0-0", _WITHDRAWN),
            ("from orderlymq import AdminClient", _WITHDRAWN),
            (
                "kubectl exec demo-nameserver-0",
                "tests/nameserver/test_routefile.py::test_who_deletes_the_file",
            ),
        )
    },
    ("docs/howto/outside.md", "from orderlymq import ClientSettings, Producer"): Runner(
        "tests/cluster/test_outside.py::test_order_is_kept_outside",
        "its addresses are those of another network",
    ),
    (_PIPELINES, "docker build --target spark"): Runner(
        "e2e/conftest.py::build_spark",
        "an image of 1.35 GB: `make e2e` builds and loads it, CI does not",
    ),
    ("docs/howto/grow.md", "kubectl patch topic.orderlymq.io/payments"): _GROWS,
    ("docs/howto/grow.md", "kubectl get topic.orderlymq.io payments"): _GROWS,
    ("docs/howto/remove.md", "kubectl get cluster.orderlymq.io demo"): _RETAINED,
    ("docs/howto/remove.md", "kubectl delete cluster.orderlymq.io demo"): _RETAINED,
    ("docs/howto/remove.md", "kubectl apply -f examples/quickstart.yaml"): _RETAINED,
    ("docs/howto/remove.md", "kubectl delete pvc"): _RETAINED,
    ("docs/howto/remove.md", "kubectl get crd"): Runner(
        "e2e/installed.py::helm", "it would end the Clusters of all other scenarios"
    ),
    ("docs/howto/upgrade.md", "TAG=$(git rev-parse --short HEAD)"): Runner(
        "e2e/scenarios/test_quickstart.py::test_the_quick_start_is_ready",
        "the fixtures of the scenario build and load an image",
    ),
    ("docs/howto/scale.md", "kubectl apply -f examples/scaling/keda.yaml"): Runner(
        "tests/cluster/test_scaling.py::test_consumers_scale_with_the_backlog",
        "it needs KEDA, which cannot be installed here; its trigger is what the test scales by",
    ),
    ("docs/reference/console.md", "curl"): Runner(
        "tests/console/web/test_guard.py::test_a_program_shows_its_token",
        "the token is the reader's",
    ),
    ("docs/explanation/lanes.md", "async with Consumer("): Runner(
        "tests/docs/test_fragments.py::test_a_consumer_by_key", "the guide has all of it"
    ),
    (_PIPELINES, "make dist"): _SUBMITTED,
    (_PIPELINES, "home=$(python -c"): _SUBMITTED,
    # `make test-spark` runs each in a session with its own data.
    **{
        (_PIPELINES, opening): Runner(f"tests/spark/{where}", _SPARK)
        for opening, where in (
            (
                "from orderlymq_spark import delta_batches",
                "tables/test_deltabatches.py::test_a_frame_that_spark_gives_again",
            ),
            (
                "from orderlymq_spark import ordered, read_batch",
                "jobs/test_pipelines.py::test_a_frame_is_sent_in_order",
            ),
            ("orders = read_batch(", "values/test_decoder.py::test_spark_sees_the_body_as_columns"),
            ("events = read_batch(", "values/test_cloudevents.py::test_events_go_through_spark"),
            (
                "from orderlymq_spark.options import Connect",
                "run/test_stream.py::test_the_lag_grows_while_a_batch_lasts",
            ),
            (
                "select queue_id, queue_offset",
                "jobs/test_pipelines.py::test_an_archive_holds_every_offset_once",
            ),
            (
                "from orderlymq_protocol.body.messagequeue",
                "tables/test_iceberg.py::test_the_snapshot_that_brought_an_offset",
            ),
            ("select * from history", "jobs/test_cdc.py::test_a_history_yields_the_source_table"),
        )
    },
    **{
        (_PIPELINES, f"$ orderlymq pipeline run examples/pipelines/{name}.yaml"): Runner(
            f"tests/spark/jobs/{where}", _RUNS
        )
        for name, where in (
            ("archive", "test_pipelines.py::test_an_archive_holds_every_offset_once"),
            ("compact", "test_pipelines.py::test_compaction_keeps_rows_and_order"),
            ("order-audit", "test_pipelines.py::test_the_audit_finds_what_is_broken"),
            ("skew-report", "test_pipelines.py::test_skew_is_measured"),
            ("lag", "test_lag.py::test_what_a_group_has_not_consumed"),
            ("dead-letters", "test_redrive.py::test_dead_letters_go_back_in_order"),
            ("replay", "test_pipelines.py::test_a_replay_keeps_order_and_count"),
            ("cdc-apply", "test_cdc.py::test_a_topic_becomes_a_table"),
            ("cdc-history", "test_cdc.py::test_a_history_yields_the_source_table"),
        )
    },
    ("docs/evidence/hostile.md", "make hostile"): Runner(".ci/run::make hostile", _NUMBERS),
    ("docs/evidence/nemesis/README.md", "make nemesis"): Runner(".ci/run::nemesis", _NUMBERS),
    ("docs/explanation/simulator.md", "python -m tests.sim"): Runner(".ci/run::make sim", _NUMBERS),
    ("docs/evidence/mutants.md", "make mutants"): Runner(
        "tests/mutants/__main__.py::main", "hours: a person runs it before a release"
    ),
}


def elsewhere(page: str, opening: str) -> list[tuple[str, str]]:
    """Return the rows of the list for the block with this first line on a page."""
    return [row for row in ELSEWHERE if row[0] == page and opening.startswith(row[1])]


@cache
def typed_at_kubernetes() -> dict[str, set[str]]:
    """Return the beginnings of the lines that scenarios type, by page."""
    found: dict[str, set[str]] = {}
    for file in sorted((ROOT / "e2e").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "types":
                words = [each.value for each in node.args if isinstance(each, ast.Constant)]
                assert len(words) == len(node.args), f"{file}: pages and lines stand as they are"
                page, *lines = map(str, words)
                found.setdefault(f"docs/{page}.md", set()).update(lines)
    return found


def command_lines(text: str) -> list[str]:
    """Return the command lines of a block; a line that continues after a backslash or a pipe is joined."""
    return re.sub(r"\\\n|(?<=\|)\n", " ", text).splitlines()


def is_typed(page: str, text: str) -> bool:
    """Return whether a scenario types each line of a block."""
    lines = [line.strip() for line in command_lines(text) if line.strip()]
    begun = tuple(typed_at_kubernetes().get(page, ()))
    return bool(lines) and all(line.startswith(begun) for line in lines)
