"""Where credentials come from."""

import ssl
from pathlib import Path

import pytest

from orderlymq.connection.credentials import (
    Credentials,
    find_credentials,
    find_tls,
    read_credentials,
    tls_is_set,
)
from orderlymq.errors import SettingError
from orderlymq.settings import ClientSettings
from tests.runtime.certificates import make_authority


def test_settings_come_before_the_environment_and_that_before_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Law: settings come before the environment, and that before a file; key and secret are never mixed."""
    file = tmp_path / "credentials"
    file.write_text("# of the shop\naccess_key = from-file\nsecret_key = a=b \n\ntoken=t\n")

    assert find_credentials(ClientSettings()) == Credentials()
    monkeypatch.setenv("ORDERLYMQ_CREDENTIALS", str(file))
    assert find_credentials(ClientSettings()) == Credentials("from-file", "a=b", "t")
    monkeypatch.setenv("ORDERLYMQ_ACCESS_KEY", "from-environment")
    monkeypatch.setenv("ORDERLYMQ_SECRET_KEY", "s")
    assert find_credentials(ClientSettings()) == Credentials("from-environment", "s")
    own = ClientSettings(access_key="own", secret_key="o")
    assert find_credentials(own) == Credentials("own", "o")


def test_secrets_are_never_shown() -> None:
    """Law: no text form of an object contains a secret, because a log line may print it."""
    assert "hidden" not in repr(Credentials("key", "hidden", "hidden"))
    assert "hidden" not in repr(ClientSettings(access_key="k", secret_key="hidden", token="hidden"))


def test_what_cannot_be_used_is_an_error_that_shows_no_secret(tmp_path: Path) -> None:
    """Law: unusable credentials raise an error that names the place and not the line."""
    file = tmp_path / "credentials"
    file.write_text("access_key = a\nhidden\n")

    with pytest.raises(SettingError, match="line 2") as caught:
        read_credentials(file)
    assert "hidden" not in str(caught.value)
    with pytest.raises(SettingError, match="cannot be read"):
        read_credentials(tmp_path / "missing")
    with pytest.raises(SettingError, match="has no secret"):
        find_credentials(ClientSettings(access_key="a"))


def test_a_ca_can_be_trusted_whatever_the_address_that_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a CA can be set by settings and environment; unless told otherwise, the certificate must match the host."""
    ca = str(make_authority(tmp_path))
    monkeypatch.setenv("ORDERLYMQ_TLS", "true")
    monkeypatch.setenv("ORDERLYMQ_TLS_CA", ca)
    strict = (find_tls(ClientSettings()), find_tls(ClientSettings(use_tls=True, tls_ca_file=ca)))
    monkeypatch.setenv("ORDERLYMQ_TLS_VERIFY_HOST", "false")
    lenient = (
        find_tls(ClientSettings()),
        find_tls(ClientSettings(use_tls=True, tls_ca_file=ca, tls_verify_host=False)),
    )

    assert [found().check_hostname for found in strict if found] == [True, True]
    assert [found().check_hostname for found in lenient if found] == [False, False]
    assert {found().verify_mode for found in lenient if found} == {ssl.CERT_REQUIRED}


@pytest.mark.parametrize(
    ("word", "means"),
    [
        *((word, True) for word in ("on", "TRUE ", "Yes", "1")),
        *((word, False) for word in ("off", "False", " no", "0")),
        *((word, None) for word in ("", " ")),
    ],
)
def test_a_variable_of_tls_means_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, means: bool | None
) -> None:
    """Law: an empty TLS variable counts as not set; true and false mean what they say."""
    monkeypatch.setenv("ORDERLYMQ_TLS_CA", str(make_authority(tmp_path)))
    monkeypatch.setenv("ORDERLYMQ_TLS", word)
    assert (find_tls(ClientSettings()) is not None, tls_is_set()) == (
        means is True,
        means is not None,
    )

    monkeypatch.setenv("ORDERLYMQ_TLS", "true")
    monkeypatch.setenv("ORDERLYMQ_TLS_VERIFY_HOST", word)
    found = find_tls(ClientSettings())

    assert found is not None
    assert found().check_hostname is (means is not False)


@pytest.mark.parametrize("variable", ["ORDERLYMQ_TLS", "ORDERLYMQ_TLS_VERIFY_HOST"])
def test_another_word_in_a_variable_of_tls_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Law: another word in a TLS variable is refused, because a guess could send without TLS."""
    monkeypatch.setenv("ORDERLYMQ_TLS", "true")
    monkeypatch.setenv(variable, "enabled")

    with pytest.raises(SettingError, match=f"{variable} is 'enabled'; write true or false"):
        find_tls(ClientSettings())


def test_files_that_settings_name_are_read_again_when_they_change(tmp_path: Path) -> None:
    ca = make_authority(tmp_path)
    found = find_tls(ClientSettings(use_tls=True, tls_ca_file=str(ca)))
    assert found is not None
    before = found()
    assert found() is before

    both = ca.read_bytes() + make_authority(tmp_path / "other").read_bytes()
    ca.write_bytes(both)

    assert len(found().get_ca_certs()) == 2
