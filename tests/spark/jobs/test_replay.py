"""A replay refuses some settings before it starts Spark; against real brokers."""

from pathlib import Path
from typing import Any

import pytest

from orderlymq_spark.errors import OptionError
from orderlymq_spark.jobs import replay
from orderlymq_spark.specs import ReplaySpec, Source
from tests.spark.topics import Topics

pytestmark = [pytest.mark.cluster]


@pytest.mark.parametrize(
    ("target", "where"),
    [
        ("first", {}),
        ("second", {}),
        ("first", {"targetBootstrap": "{here}"}),
        ("first", {"targetBootstrap": "127.0.0.1:1;{here}"}),
    ],
)
def test_no_topic_is_copied_into_itself(
    topics: Topics, tmp_path: Path, target: str, where: dict[str, str]
) -> None:
    """The copies would be copied again, for ever; however the topic and its name servers are named."""
    names = {"first": topics.make(), "second": topics.make()}
    options: dict[str, Any] = {"topics": names["second"]}
    spec = ReplaySpec(
        type="replay",
        source=Source(bootstrap=topics.bootstrap, topic=names["first"], options=options),
        checkpoint=tmp_path / "checkpoint",
        target=names[target],
        **{name: text.format(here=topics.bootstrap) for name, text in where.items()},
    )

    with pytest.raises(OptionError, match=f"copy {names[target]} into itself"):
        replay.run("copy", spec, lambda: pytest.fail("Spark is not needed to see that"))
