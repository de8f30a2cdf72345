"""Access to the console: accounts, sessions, and no start on other addresses without them."""

from pathlib import Path

import pytest

from orderlymq.errors import SettingError
from orderlymq_console.settings import (
    Account,
    ConsoleSettings,
    parse_cluster,
    parse_listen,
    read_accounts,
)
from orderlymq_console.web.guard import is_known_host
from orderlymq_console.web.sessions import (
    LIFE_S,
    SESSIONS_MAX,
    WRONG_MAX,
    WRONG_WITHIN_S,
    Sessions,
    TooManyWrong,
)

TOKEN = "t" * 20
ALICE = Account("alice", "act", TOKEN)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "::ffff:192.0.2.1", "192.0.2.1", "console.example"]
)
def test_beyond_this_machine_nothing_starts_without_accounts(host: str) -> None:
    """Law: a console for other machines does not start without accounts, and says what to pass."""
    with pytest.raises(SettingError, match="pass --accounts FILE"):
        ConsoleSettings(host=host)

    assert ConsoleSettings(host=host, accounts=(ALICE,)).needs_account


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "::ffff:127.0.0.1"])
def test_on_this_machine_looking_takes_no_account(host: str) -> None:
    assert not ConsoleSettings(host=host).needs_account
    assert not ConsoleSettings().needs_account
    assert ConsoleSettings(accounts=(ALICE,)).needs_account


def test_addresses_are_read() -> None:
    assert parse_listen("127.0.0.1:9870") == ("127.0.0.1", 9870)
    assert parse_listen("[::1]:0") == ("::1", 0)
    for wrong in ("9870", ":9870", "host", "host:x", "host:70000", "host:-1"):
        with pytest.raises(SettingError, match="not an address to listen on"):
            parse_listen(wrong)


def test_a_cluster_is_named_with_its_namespace() -> None:
    assert parse_cluster("shop/demo") == ("shop", "demo")
    for wrong in ("demo", "/demo", "shop/", "a/b/c", "Shop/demo", "shop/../x"):
        with pytest.raises(SettingError, match="write NAMESPACE/CLUSTER"):
            parse_cluster(wrong)


def test_pipelines_are_read_at_one_place(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="not both"):
        ConsoleSettings(pipelines=(tmp_path,), pipelines_of=("shop", "demo"))


def test_accounts_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "accounts.toml"
    file.write_text(f'[alice]\ntoken = "{TOKEN}"\nright = "act"\n[bob]\ntoken = "{TOKEN}b"\n')

    assert read_accounts(file) == (ALICE, Account("bob", "view", f"{TOKEN}b"))
    assert TOKEN not in repr(read_accounts(file))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[alice]\n",
        'alice = "x"\n',
        '[alice]\ntoken = "short"\n',
        f'[alice]\ntoken = "{TOKEN}"\nright = "root"\n',
        f'[alice]\ntoken = "{TOKEN}"\nrights = "act"\n',
        "[alice\n",
    ],
)
def test_a_file_that_is_not_right_is_refused_without_its_tokens(tmp_path: Path, text: str) -> None:
    """Law: a wrong accounts file is refused with file and account, but without its tokens."""
    file = tmp_path / "accounts.toml"
    file.write_text(text)

    with pytest.raises(SettingError, match=r"accounts\.toml") as caught:
        read_accounts(file)
    assert TOKEN not in str(caught.value)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_session_ends_by_time_by_hand_and_when_there_are_too_many() -> None:
    """Law: a session ends by time, by signing out, or as the oldest of too many; it cannot be guessed."""
    clock = Clock()
    sessions = Sessions((ALICE,), clock=clock)
    first = sessions.begin(ALICE)
    found = sessions.get(first)
    assert found is not None
    assert found.account is ALICE
    second = sessions.begin(ALICE)
    sessions.end(second)
    assert sessions.get(second) is None
    assert sessions.get("") is None

    for _ in range(SESSIONS_MAX):
        last = sessions.begin(ALICE)
    assert sessions.get(first) is None
    clock.now_s = LIFE_S
    assert sessions.get(last) is None


def test_whoever_may_look_ends_nobody_elses_session() -> None:
    """Law: an account that signs in very often loses its own oldest sessions, never those of others."""
    bob = Account("bob", "view", "b" * 20)
    clock = Clock()
    sessions = Sessions((ALICE, bob), clock=clock)
    sessions.begin(bob)
    clock.now_s = 1.0
    mine = sessions.begin(ALICE)
    first = sessions.begin(bob)

    for _ in range(SESSIONS_MAX):
        last = sessions.begin(bob)
    assert sessions.get(mine) is not None
    assert sessions.get(first) is None
    clock.now_s = LIFE_S
    second = sessions.begin(ALICE)
    for _ in range(SESSIONS_MAX - 2):
        sessions.begin(bob)
    assert [sessions.get(each) is None for each in (mine, last, second)] == [False, True, False]


def test_wrong_tokens_are_slowed_down_and_a_right_one_never() -> None:
    """Law: wrong tokens are slowed down, a right one never is."""
    clock = Clock()
    sessions = Sessions((ALICE,), clock=clock)
    for number in range(WRONG_MAX):
        assert sessions.account(f"wrong {number} \ud800") is None

    with pytest.raises(TooManyWrong):
        sessions.account("wrong")
    assert sessions.account(TOKEN) is ALICE
    clock.now_s = WRONG_WITHIN_S
    assert sessions.account("wrong") is None


def test_a_name_of_the_console_is_one_in_whatever_letters() -> None:
    """Law: host names of the console count in any case of letters; browsers send them in lower case."""
    settings = ConsoleSettings(hosts=("Console.Example",), https_hosts=("Shop.Example",))

    assert (settings.hosts, settings.https_hosts) == (("console.example",), ("shop.example",))
    assert is_known_host("console.example:9870", settings.hosts)
