"""The settings file of a running replica: which changes take effect, which wait for a restart, which are refused."""

import logging
import os
from pathlib import Path

import msgspec
import pytest

from orderlymq_broker.core.livesettings import LIVE, text_of, with_live
from orderlymq_broker.server.settingsreload import SettingsReload
from orderlymq_broker.settings import BrokerSettings, load
from orderlymq_runtime.settingsfile import SettingsError

# Each setting that can change at run time, with a value other than its default.
OTHERS: dict[str, dict[str, object]] = {
    "autoCreateTopicEnable": {"auto_create_topic": False},
    "autoCreateSubscriptionGroup": {"auto_create_group": False},
    "defaultTopicQueueNums": {"default_topic_queues": 3},
    "brokerPermission": {"permission": 4},
    "rejectTransactionMessage": {"reject_transactions": True},
    "enablePropertyFilter": {"enable_property_filter": False},
    "fileReservedTime": {"storage": {"retention_ms": 5_400_000}},
    "diskMaxUsedSpaceRatio": {"storage": {"disk_refuse_ratio": 0.7, "disk_resume_ratio": 0.68}},
    "maxMessageSize": {"storage": {"body_size_max": 1_000}},
    "transactionTimeOut": {"timers": {"transaction_timeout_ms": 7_000}},
    "transactionCheckInterval": {"timers": {"transaction_check_interval_ms": 7_000}},
    "transactionCheckMax": {"timers": {"transaction_check_max": 3}},
    "timerWheelEnable": {"timers": {"timer_enable": False}},
    "recallMessageEnable": {"timers": {"recall_enable": False}},
    "timerMaxDelaySec": {"timers": {"timer_delay_max_ms": 60_000}},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "replica.json"


def write(path: Path, **changes: object) -> BrokerSettings:
    """Replace the file as an operator does; return the settings of a replica that starts now."""
    said = {
        "cluster": "demo",
        "group": "demo-0",
        "node_id": 1,
        "data_dir": str(path.parent),
        "peers": {"1": {"host": "127.0.0.1", "port": 1}},
        "address": {"host": "127.0.0.1", "port": 2},
        "http": {"host": "127.0.0.1", "port": 3},
        **changes,
    }
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(said))
    os.replace(fresh, path)
    return load(path)


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("operator", b"", "holds 0 bytes, not 16 to 1024"),
        ("operator", b" \n", "holds 0 bytes"),
        ("operator", b"short", "holds 5 bytes"),
        ("operator", b"x" * 1_025, "holds 1025 bytes"),
        ("operator", b"\xff" * 16, "is not UTF-8 text"),
        ("operator", None, "No such file"),
        ("", b"x" * 16, "are one account"),
    ],
)
def test_half_an_account_of_the_operator_is_refused(
    path: Path, key: str, text: bytes | None, reason: str
) -> None:
    """Law: an operator key without its secret, or the reverse, is refused; it would act as if there were no such account."""
    file = path.with_name("operator.secret")
    if text is not None:
        file.write_bytes(text)
    access = {"operator_key": key, "operator_secret_file": str(file)}

    with pytest.raises(SettingsError, match=reason):
        write(path, access=access)
    with pytest.raises(SettingsError, match="are one account"):
        write(path, access={"operator_key": "operator"})


def test_the_secret_of_the_operator_is_read_without_white_space(path: Path) -> None:
    """Law: white space around the operator's secret, as editors leave it, is ignored."""
    file = path.with_name("operator.secret")
    file.write_text(f" {'s' * 16}\n")

    read = write(path, access={"operator_key": "operator", "operator_secret_file": str(file)})

    assert read.access.operator_secret == "s" * 16


@pytest.mark.parametrize("name", LIVE)
def test_a_live_setting_takes_effect_as_after_a_start(path: Path, name: str) -> None:
    """Law: after a reload, live settings are those of a replica that starts with the new file."""
    file = SettingsReload(path)
    before = write(path)

    assert file.refresh(before) == before
    started = write(path, **OTHERS[name])
    after = file.refresh(before)

    assert after == started
    assert text_of(after, name) != text_of(before, name)
    assert file.refresh(after) is after


def test_other_settings_wait_for_the_next_start(path: Path) -> None:
    """Law: a changed setting that needs a restart has no effect, and live ones still take effect."""
    before = write(path)
    file = SettingsReload(path)

    write(path, trace_topic_enable=True)
    assert file.refresh(before) == before
    write(path, trace_topic_enable=True, permission=4)

    assert file.refresh(before) == with_live(before, write(path, permission=4))


def test_a_change_while_the_replica_starts_is_not_missed(path: Path) -> None:
    """Law: a change between the start's reading and the first check is noticed."""
    started = write(path)

    changed = write(path, permission=4)

    assert SettingsReload(path).refresh(started) == changed


@pytest.mark.parametrize("text", ["{", '{"permission": "all"}', None])
def test_a_file_that_cannot_be_used_leaves_the_present_settings(
    path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: a file that cannot be used is reported once and changes nothing; the next good file counts."""
    before = write(path)
    file = SettingsReload(path)

    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with caplog.at_level(logging.ERROR):
        assert file.refresh(before) is before
        assert file.refresh(before) is before

    assert [
        each.message.endswith("the previous settings stay effective") for each in caplog.records
    ] == [True]
    good = write(path, permission=4)
    assert file.refresh(before) == good
