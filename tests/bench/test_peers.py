"""The systems of the comparison: what each one runs, and what the page calls it."""

from bench.bykey import OURS, title_of
from bench.peers.catalogue import PEERS
from bench.peers.ours import OrderlyMQCompiled
from bench.report.reach import OURS as COMPARED


def test_who_stands_for_us_in_a_class_runs_what_the_image_runs() -> None:
    """Ratios are taken to it; from the sources it would be slower than what users get."""
    first = {durability: PEERS[names[0]] for durability, names in COMPARED.items()}

    assert {durability: peer.durability for durability, peer in first.items()} == {
        durability: durability for durability in first
    }
    assert all(issubclass(peer, OrderlyMQCompiled) for peer in first.values())
    assert all(peer.title.endswith("compiled as in the image") for peer in first.values())


def test_by_key_says_once_what_ours_runs() -> None:
    """It starts processes as it was started itself, whatever the peer of that name does."""
    assert [title_of(name).count("compiled") for name in OURS] == [1, 1]
