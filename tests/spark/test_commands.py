"""The command: its output without Spark, and with invalid files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orderlymq_spark.specs import SPECS

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipelines" / "archive.yaml"
WITHOUT_SPARK = """
import sys
for name in ("pyspark", "pyarrow", "numpy", "pandas", "deltalake"):
    sys.modules[name] = None
from orderlymq.cli import main
sys.argv = ["orderlymq", *{words!r}]
main()
"""


def call(*words: str, without_spark: bool = False) -> subprocess.CompletedProcess[str]:
    code = (
        ["-c", WITHOUT_SPARK.format(words=list(words))]
        if without_spark
        else ["-m", "orderlymq", *words]
    )
    return subprocess.run(
        [sys.executable, *code], capture_output=True, text=True, timeout=60, check=False
    )


def test_without_spark_one_sentence_has_the_cure() -> None:
    """A user who has only the SDK is told what to install; listing pipelines works without Spark."""
    run = call("pipeline", "run", str(EXAMPLE), without_spark=True)
    listed = call("pipeline", "list", "--output", "json", without_spark=True)

    assert run.returncode == 1
    assert "pipelines need pyspark" in run.stderr
    assert "pip install '.[spark]'" in run.stderr
    _sentence, link = run.stderr.strip().splitlines()
    assert link.startswith("See: docs/")
    assert [each["type"] for each in json.loads(listed.stdout)] == list(SPECS)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind: Topic", "kind must be Pipeline"),
        ("a: [", "is not YAML"),
        ("", "has 0 documents; give a file with one Pipeline"),
        ("kind: Pipeline\n---\nkind: Topic\n", "has 2 documents; give a file with one Pipeline"),
        ("kind: Pipeline\nspec: {type: archives}", "did you mean archive?"),
    ],
)
def test_a_wrong_file_is_one_sentence_and_code_2(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)

    found = call("pipeline", "run", str(path))

    assert (found.returncode, sentence in found.stderr) == (2, True), found.stderr
    assert "Traceback" not in found.stderr
