"""Names inside namespaces, as NamespaceUtil of RocketMQ's clients makes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq import with_namespace, without_namespace


@pytest.mark.parametrize(
    ("namespace", "name", "whole"),
    [
        ("shop", "orders", "shop%orders"),
        ("shop", "shop%orders", "shop%orders"),
        ("shop", "%RETRY%billing", "%RETRY%shop%billing"),
        ("shop", "%DLQ%billing", "%DLQ%shop%billing"),
        ("shop", "%RETRY%shop%billing", "%RETRY%shop%billing"),
        ("shop", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC"),
        ("shop", "TOOLS_CONSUMER", "TOOLS_CONSUMER"),
        ("", "orders", "orders"),
    ],
)
def test_names_are_wrapped_as_java_wraps_them(namespace: str, name: str, whole: str) -> None:
    """Once, behind the prefix of a retry or dead-letter topic; never a name of the system."""
    assert with_namespace(namespace, name) == whole


NAMES = st.from_regex(r"(%RETRY%|%DLQ%)?[a-z]{1,8}", fullmatch=True)


@given(st.from_regex(r"[A-Za-z]{1,8}", fullmatch=True), NAMES)
def test_what_was_wrapped_is_unwrapped(namespace: str, name: str) -> None:
    """By its own namespace or by any; another one leaves it alone."""
    whole = with_namespace(namespace, name)

    assert with_namespace(namespace, whole) == whole
    assert without_namespace(whole, namespace) == name
    assert without_namespace(whole) == name
    assert without_namespace(whole, namespace + "x") == whole
