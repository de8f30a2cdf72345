"""The table of settings changed at run time: which are kept, and when the version rises."""

from orderlymq_broker.state.admin.settingsrecords import SettingsChanged, SettingsSet
from tests.broker.state.entries import WALL_MS, Replica


def test_a_setting_is_kept_until_it_is_the_manifests_value_again(replica: Replica) -> None:
    """Law: a changed setting is kept until it has the manifest's value again;
    a change without effect does not raise the version.
    """
    script: list[tuple[dict[str, tuple[str, str]], bool, dict[str, tuple[str, str]]]] = [
        ({"a": ("1", "1")}, False, {}),
        ({"a": ("2", "1"), "b": ("5", "5")}, True, {"a": ("2", "1")}),
        ({"a": ("2", "1")}, False, {"a": ("2", "1")}),
        ({"b": ("6", "5")}, True, {"a": ("2", "1"), "b": ("6", "5")}),
        ({"a": ("3", "1")}, True, {"a": ("3", "1"), "b": ("6", "5")}),
        ({"a": ("3", "2")}, True, {"a": ("3", "2"), "b": ("6", "5")}),
        ({"a": ("2", "2")}, True, {"b": ("6", "5")}),
        ({}, False, {"b": ("6", "5")}),
    ]
    version = 0

    for values, changed, kept in script:
        assert replica.take(SettingsSet(values)) == [SettingsChanged(changed)]

        version += changed
        for each in (replica, replica.restarted()):
            assert each.state.overrides.values == kept
            assert each.state.overrides.version.row() == (version, WALL_MS if version else 0)


def test_replicas_compare_settings_in_the_order_of_their_names(replica: Replica) -> None:
    """Law: replicas compare settings in the order of their names, independent of the order of arrival."""
    assert list(replica.state.overrides.rows()) == [(0, 0, [])]

    replica.take(SettingsSet({"b": ("6", "5")}), SettingsSet({"a": ("2", "1")}))

    values = [("a", ("2", "1")), ("b", ("6", "5"))]
    assert list(replica.state.overrides.rows()) == [(2, WALL_MS, values)]
