"""Long lists: a page's cost grows with the rows that it shows, not with the cluster."""

from orderlymq.admin.client import AdminClient
from orderlymq_console.cluster import Answers, ClusterReader
from orderlymq_console.collector import Collector, Reading


def answers(**tables: dict[str, int] | None) -> Answers[dict[str, int]]:
    return Answers({name: Reading(table, "", 0.0) for name, table in tables.items()})


def test_a_catalogue_is_sorted_once_for_all_pages_and_viewers() -> None:
    """Law: a list is sorted once for all pages and viewers, until a broker group answers differently or another group
    comes.
    """
    reader = ClusterReader(AdminClient("127.0.0.1:1"), Collector())
    first, second = {"b": 1, "_a": 1}, {"c": 1, "b": 1}
    asked: list[str] = []

    def names(**tables: dict[str, int] | None) -> tuple[list[str], int]:
        asked.clear()
        found = reader.sorted_names("topics", answers(**tables), is_shown)
        return list(found), len(asked)

    def is_shown(name: str) -> bool:
        asked.append(name)
        return not name.startswith("_")

    assert names(one=first, two=second) == (["b", "c"], 3)
    assert names(one=first, two=second) == (["b", "c"], 0)
    assert names(one=first, two=None) == (["b"], 2)
    assert names(one=first, two=dict(second)) == (["b", "c"], 3)
    assert names(one=first, other=second) == (["b", "c"], 3)
    assert names(one=first, two={"d": 1}) == (["b", "d"], 3)
