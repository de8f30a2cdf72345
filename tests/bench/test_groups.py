"""Several broker groups on one machine: the table, and the model's input from it."""

from bench.groups import costs, section, table
from bench.report.scaling import Costs
from bench.sends import Round

ROUNDS = {
    1: [Round(10_000.0, 5.0, 9.0, 80.0, 40.0), Round(12_000.0, 6.0, 11.0, 90.0, 44.0)],
    2: [Round(8_800.0, 7.0, 12.0, 100.0, 50.0)],
}


def test_rates_are_set_beside_that_of_one_group() -> None:
    _, _, *rows = table(ROUNDS)

    assert rows == [
        "| 1 | 2 | 11,000 | 1.00 | 5.50 | 10.0 | 85.0 | 42.0 |",
        "| 2 | 1 | 8,800 | 0.80 | 7.00 | 12.0 | 100 | 50.0 |",
    ]


def test_the_model_is_fed_by_what_one_group_costs() -> None:
    """The cost that is not the leader's is divided by two followers."""
    assert costs(ROUNDS[1]) == Costs(42.0, 21.5, 1024)


def test_the_section_has_the_table_the_model_and_its_assumptions() -> None:
    text = section(ROUNDS, "not compiled", "c0ffee")

    assert "medians; c0ffee." in text
    assert (
        text.index("| 2 | 1 | 8,800")
        < text.index("This table is a model")
        < text.index("The model assumes:")
    )
