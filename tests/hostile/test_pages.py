"""Requests for pages: of all paths that the routers have, and with every parameter that the console reads."""

from tests.hostile.pages import (
    Session,
    console_parameters,
    console_request,
    console_routes,
    page,
    served_paths,
)

_SESSION = Session("cookie", "proof")


def test_all_pages_of_a_process_are_asked_for() -> None:
    """Law: a path that the router has is asked for without being named here."""
    asked = {
        page(1, number).split(b" ")[1:2][0] for number in range(600) if b" " in page(1, number)
    }

    assert {"/healthz", "/readyz", "/metrics", "/status"} <= set(served_paths())
    assert {path.encode() for path in served_paths()} <= asked


def test_all_pages_of_the_console_are_asked_for_with_each_parameter() -> None:
    """Law: likewise; changes carry the proof of a form, or their handlers would never see them."""
    requests = [console_request(1, number, _SESSION) for number in range(2_000)]
    text = b"\n".join(requests).decode(errors="replace")

    assert {("GET", "/topics/{topic}"), ("POST", "/groups/{group}/reset")} <= set(console_routes())
    for method, path in console_routes():
        assert f"{method} {path.partition('{')[0]}" in text
    assert {"topic", "key", "stamp", "confirm"} <= set(console_parameters())
    for name in console_parameters():
        assert f"{name}=" in text
    assert "proof=proof" in text


def test_a_request_for_a_page_follows_from_its_seed_and_number() -> None:
    """Law: what was found can be asked again."""
    assert console_request(1, 7, _SESSION) == console_request(1, 7, _SESSION)
    assert console_request(1, 7, _SESSION) != console_request(2, 7, _SESSION)
