"""Facts about the machine that the page reports by itself."""

from pathlib import Path

from bench.report.conditions import built, scheduling


def test_a_python_says_how_it_was_built() -> None:
    """A Python without optimisation is slower by a third or more."""
    arguments = "'--prefix=/opt' '--enable-optimizations' '--with-lto'"

    assert built(arguments, "/opt") == "configured with `--enable-optimizations` `--with-lto`"
    assert built("'--prefix=/opt'", "/opt") == "configured without `--enable-optimizations`"
    assert built("'--prefix=/usr'", "/usr").startswith("as ")


def test_scheduling_groups_are_told_by_the_switch_of_the_kernel(tmp_path: Path) -> None:
    """The kernel's scheduling groups decide whether one busy node takes CPU time from the others."""
    switch = tmp_path / "switch"
    assert scheduling(switch) == (
        "this Linux has no autogroup, so all processes share one scheduling group"
    )
    switch.write_text("0\n")
    assert scheduling(switch).startswith("Linux' autogroup is off, so all processes share one")
    switch.write_text("1\n")
    assert scheduling(switch).startswith("Linux' autogroup is on, so each node has its own")
