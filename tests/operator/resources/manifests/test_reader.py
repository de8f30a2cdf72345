import os
import threading
from pathlib import Path

import pytest

from orderlymq_operator.resources.manifests import yamlsource
from orderlymq_operator.resources.manifests.combination import combine
from orderlymq_operator.resources.manifests.problems import ManifestError, Problem
from orderlymq_operator.resources.manifests.reader import parse, read, read_with_texts
from orderlymq_operator.resources.manifests.yamlsource import SourceError, documents

_CLUSTER = """\
apiVersion: orderlymq.io/v1alpha1
kind: Cluster
metadata:
  name: demo
"""
_TOPIC = """\
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata:
  name: orders
spec:
  clusterRef: {name: demo}
"""


def _problems(text: str) -> list[Problem]:
    with pytest.raises(ManifestError) as caught:
        parse(text, "my.yaml")
    return list(caught.value.problems)


def test_the_quickstart_is_what_the_readme_promises() -> None:
    """Law: the quickstart manifests are as the README says: one name server, three replicas,
    an ordered topic of 8 queues, one group.
    """
    wanted = combine(read([Path("examples/quickstart.yaml")]), None)

    spec = wanted.cluster.spec
    assert (spec.groups, spec.replicas_per_group, spec.name_servers.replicas) == (1, 3, 1)
    assert [(item.topic_name, item.spec.queues, item.ordered) for item in wanted.topics] == [
        ("orders", 8, True)
    ]
    assert [(item.group_name, item.spec.ordering) for item in wanted.consumer_groups] == [
        ("billing", "Ordered")
    ]


def test_a_typo_in_a_field_names_line_path_and_nearest_field() -> None:
    """Law: a misspelt field is reported with its line, path and the nearest known field."""
    assert _problems(_TOPIC + "  queus: 8\n") == [
        Problem("my.yaml", 7, "spec.queus", "unknown field; did you mean `queues`?")
    ]


def test_a_typo_deep_inside_is_looked_up_among_its_own_siblings() -> None:
    """Law: for a misspelt nested field the suggestion comes from its siblings."""
    text = _CLUSTER + "spec:\n  storage:\n    Size: 20Gi\n  config:\n    logLevl: INFO\n"

    assert _problems(text) == [
        Problem("my.yaml", 7, "spec.storage.Size", "unknown field; did you mean `size`?"),
        Problem("my.yaml", 9, "spec.config.logLevl", "unknown field; did you mean `logLevel`?"),
    ]


def test_a_typo_in_an_enum_names_the_choices_and_the_nearest() -> None:
    """Law: a misspelt choice is reported with all choices and the nearest one, regardless of case."""
    assert _problems(_TOPIC + "  type: ordred\n") == [
        Problem(
            "my.yaml",
            7,
            "spec.type",
            "found the text 'ordred', expected Ordered, Normal, Delay or Transaction; "
            "did you mean `Ordered`?",
        )
    ]


def test_a_typo_in_a_list_names_its_index() -> None:
    """Law: an error in a list names its index."""
    text = _TOPIC.replace("Topic", "ConsumerGroup") + "  topics:\n    - name: a\n    - nme: b\n"

    assert _problems(text) == [
        Problem("my.yaml", 9, "spec.topics[1].name", "this field is required"),
        Problem("my.yaml", 9, "spec.topics[1].nme", "unknown field; did you mean `name`?"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('queues: "8"', "found the text '8', expected a whole number"),
        ("queues: 0", "found 0, expected greater than or equal to 1"),
        ("queues: 1025", "found 1025, expected less than or equal to 1024"),
        ("queues: [8]", "found a list, expected a whole number"),
        ("queues: true", "found true, expected a whole number"),
        ("queues:", "found nothing, expected a whole number"),
    ],
)
def test_a_wrong_type_or_range_says_what_was_found_and_expected(line: str, message: str) -> None:
    """Law: a wrong type or range is reported with both found and expected;
    nothing is converted (a quoted number is a text).
    """
    assert _problems(_TOPIC + f"  {line}\n") == [Problem("my.yaml", 7, "spec.queues", message)]


def test_a_wrong_size_or_name_is_explained_in_words() -> None:
    """Law: a wrong size or name is explained in words, not by a pattern."""
    text = _CLUSTER.replace("demo", "Demo_1") + "spec:\n  storage: {size: 20GB}\n"

    assert [str(problem) for problem in _problems(text)] == [
        "my.yaml:4: metadata.name: found the text 'Demo_1', expected lower-case letters, digits and `-`",
        "my.yaml:6: spec.storage.size: found the text '20GB', expected a size such as 20Gi",
    ]


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        (
            _TOPIC + "  drainTimeout: 60\n",
            "spec.drainTimeout",
            "found 60, expected a time with a unit, such as 60s, 72h or 500ms",
        ),
        (
            _CLUSTER + "spec: {storage: {size: 20}}\n",
            "spec.storage.size",
            "found 20, expected a size such as 20Gi",
        ),
        (
            _TOPIC.partition("spec:")[0] + "spec:\n",
            "spec",
            "found nothing, expected a mapping with `clusterRef`",
        ),
        (_CLUSTER + "spec:\n", "spec", "found nothing, expected a mapping"),
        (
            _CLUSTER.replace("demo", "5"),
            "metadata.name",
            'found 5, expected a text; write it in quotes: "5"',
        ),
        (
            _CLUSTER + "spec: {local: {host: []}}\n",
            "spec.local.host",
            "found a list, expected a text",
        ),
        (
            _CLUSTER + "spec: {local: {host: ''}}\n",
            "spec.local.host",
            "found the text '', expected at least 1 character",
        ),
        (
            _CLUSTER + "spec: {config: {aclEnable: 'yes'}}\n",
            "spec.config.aclEnable",
            "found the text 'yes', expected true or false",
        ),
        (
            _CLUSTER + "spec: {config: {messageDelayLevel: 1s5s}}\n",
            "spec.config.messageDelayLevel",
            "found the text '1s5s', expected 1 to 32 delays with a space between two, such as 1s 30s 10m 2h 1d",
        ),
        (
            _CLUSTER + "spec: {allowedNamespaces: shop}\n",
            "spec.allowedNamespaces",
            "found the text 'shop', expected a list",
        ),
    ],
)
def test_a_wrong_value_is_explained_in_the_words_of_yaml(
    text: str, field: str, message: str
) -> None:
    """Law: a problem says what to write in YAML, and never uses Python's words for types."""
    assert [(each.field, each.message) for each in _problems(text)] == [(field, message)]


def test_an_unknown_kind_names_the_nearest() -> None:
    """Law: an unknown kind is reported with the nearest one, and nothing else of that document."""
    assert _problems(_TOPIC.replace("Topic", "Topics")) == [
        Problem(
            "my.yaml",
            2,
            "kind",
            "found the text 'Topics', expected Cluster, Topic, ConsumerGroup, User, Pipeline, Backup or ScheduledBackup; "
            "did you mean `Topic`?",
        )
    ]


def test_both_versions_are_read_as_the_same() -> None:
    """Law: both API versions read the same, also mixed in one file."""
    newer = (_CLUSTER + "---\n" + _TOPIC).replace("v1alpha1", "v1beta1")
    mixed = _CLUSTER + "---\n" + _TOPIC.replace("v1alpha1", "v1beta1")
    wanted = combine(parse(_CLUSTER + "---\n" + _TOPIC, "old.yaml"), None)

    assert combine(parse(newer, "new.yaml"), None) == wanted
    assert combine(parse(mixed, "mixed.yaml"), wanted) == wanted
    assert {each.api_version for each in wanted.resources()} == {"orderlymq.io/v1alpha1"}


def test_a_missing_or_wrong_version_is_named() -> None:
    """Law: a missing or foreign apiVersion is named."""
    assert _problems("kind: Topic\n") == [
        Problem(
            "my.yaml",
            1,
            "apiVersion",
            "missing; write orderlymq.io/v1alpha1 or orderlymq.io/v1beta1",
        )
    ]
    assert _problems("apiVersion: v1\nkind: Topic\n")[0].message.startswith("found the text 'v1'")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1, 2\nb: 3\n", 2),
        ("kind: x\n\tname: y\n", 2),
        ("a: 1\na: 2\n", 2),
        ("? [a]\n: b\n", 1),
        ("x: &a 1\n<<: *a\n", 2),
        ("a: 0o17x\nb: 0b12\n", 1),
    ],
)
def test_bad_yaml_names_the_line(text: str, line: int) -> None:
    """Law: broken YAML, doubled keys and exotic features are refused with their line."""
    problems = _problems(text)

    assert [problem.line for problem in problems] == [line]


def test_anchors_cannot_blow_a_small_file_up() -> None:
    """Law: nested YAML aliases cannot blow up a small file (nine levels of nine would be half a billion values)."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]

    assert "values in one document" in _problems("\n".join(levels))[0].message


def test_every_problem_of_every_document_is_reported_together() -> None:
    """Law: all problems of all documents are reported together."""
    text = f"{_TOPIC}  queus: 8\n---\n{_TOPIC}  type: x\n"

    assert [problem.line for problem in _problems(text)] == [7, 15]


def test_a_resource_declared_twice_names_both_places(tmp_path: Path) -> None:
    """Law: a resource that is declared twice is reported with both places."""
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(_CLUSTER)
    second.write_text(_TOPIC + "---\n" + _CLUSTER)

    with pytest.raises(ManifestError) as caught:
        read([first, second])

    assert [str(problem) for problem in caught.value.problems] == [
        f"{second}:8: metadata.name: Cluster 'demo' is already declared at {first}:1"
    ]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Law: a file that cannot be read is named with the reason: missing, a folder, or not text."""
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")

    with pytest.raises(ManifestError) as caught:
        read([tmp_path / "missing", tmp_path, binary])

    assert [problem.message.split(";")[0] for problem in caught.value.problems] == [
        "no such file",
        "cannot be read: Is a directory",
        "not UTF-8 text",
    ]


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """Law: a pipe is read only once, and the supervisor gets the text that was checked."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(_TOPIC,))
    writer.start()

    manifests, texts = read_with_texts([pipe])

    writer.join()
    assert [each.resource.metadata.name for each in manifests] == ["orders"]
    assert texts == [(str(pipe), _TOPIC)]


def test_the_examples_for_kubernetes_are_manifests() -> None:
    """Law: our models accept every example manifest for Kubernetes."""
    for path in sorted(Path("examples/kubernetes").glob("*.yaml")):
        assert read([path])


def test_a_character_in_two_escapes_of_json_is_one() -> None:
    """Law: in a JSON manifest a character written as two escapes is one; half of a surrogate pair is reported with its line."""
    (found,) = documents('{"text": "\\ud83d\\ude00"}')
    assert found.data == {"text": "\U0001f600"}

    with pytest.raises(SourceError, match="half of a surrogate pair") as caught:
        list(documents('{\n"text": "\\ud83d"}'))
    assert caught.value.line == 2


def test_libyaml_and_pyyaml_read_the_same_values_at_the_same_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: libyaml and PyYAML's own scanner read the same values at the same lines."""
    texts = [path.read_text() for path in sorted(Path("examples").rglob("*.yaml"))]
    texts += [
        f"{_CLUSTER}spec: &one [a, {{b: *two}}]\n".replace("*two", "&two ~"),
        "a: \U0001f600\n",
    ]
    fast = [list(documents(text)) for text in texts]
    monkeypatch.setattr(yamlsource, "_Scanner", None)

    assert [list(documents(text)) for text in texts] == fast
    assert len(fast) > 20


def test_a_manifest_that_is_fine_needs_no_slow_scanner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a correct manifest never needs the slow scanner."""
    monkeypatch.delattr("yaml.SafeLoader")

    assert [found.data for found in documents("a: 1\n---\n---\nb: [2]\n")] == [{"a": 1}, {"b": [2]}]


def test_a_text_that_is_no_unicode_is_refused() -> None:
    """Law: a text with half a surrogate pair is refused by both scanners."""
    with pytest.raises(SourceError, match="not valid YAML"):
        list(documents("name: \ud800\n"))


def test_where_libyaml_refuses_a_text_no_document_is_read_twice() -> None:
    """Law: if libyaml refuses a text, each document still comes once and in order."""
    text = 'one: 1\n---\n---\ntwo: "\\ud83d\\ude00"\n---\nthree: 3\n'

    found = [source.data for source in documents(text)]

    assert found == [{"one": 1}, {"two": "\U0001f600"}, {"three": 3}]


@pytest.mark.parametrize("text", ["[" * 5_000, "{a: " * 5_000, "- " * 5_000])
def test_values_that_stand_too_deep_are_a_problem_of_the_file(text: str) -> None:
    """Law: values nested too deep are reported as a problem of the file."""
    with pytest.raises(ManifestError, match=r"^f:1: values are nested too deeply"):
        parse(text, "f")
