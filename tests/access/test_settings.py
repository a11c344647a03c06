import os
from pathlib import Path

import pytest

from ciel.access.access_file import AccessFile, process_start
from ciel.access.errors import (
    AccessDeniedError,
    AccessFileError,
    SettingsError,
    UnsafeListenError,
)
from ciel.access.keys import Key
from ciel.access.paths import access_path, point_current
from ciel.access.settings import Settings, find_master, parse_address, require_safe_listen


class Home:
    """A home directory with a configuration file, and access files of masters."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ = {"HOME": str(root)}

    def config(self, text: str) -> Path:
        path = self.root / ".config" / "ciel" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def master(self, name: str, port: int, *, alive: bool = True) -> Path:
        path = access_path(self.environ, "localhost", port)
        start = process_start(os.getpid()) or 0
        access = AccessFile(
            url=f"http://127.0.0.1:{port}",
            control=f"unix:/run/{name}",
            cluster_id=name,
            key=Key.new(),
            pid=os.getpid(),
            pid_start=start if alive else start - 1,
        )
        access.write(path)
        return path

    def found(self, master: str | None = None, access: Path | None = None) -> str | None:
        location = find_master(master, str(access) if access else None, self.environ)
        return location.cluster_id if location else None


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_without_settings_and_masters_there_is_no_master(home: Home) -> None:
    assert home.found() is None


def test_flag_beats_environment_beats_file_beats_current(home: Home) -> None:
    paths = {name: home.master(name, port) for port, name in enumerate("abcd", start=1)}
    point_current(home.environ, paths["d"])
    assert home.found() == "d"
    home.config('master = "localhost:3"')
    assert home.found() == "c"
    home.environ["CIEL_MASTER"] = "localhost:2"
    assert home.found() == "b"
    assert home.found("http://localhost:1") == "a"


def test_an_access_file_beats_an_address_from_a_lower_source(home: Home) -> None:
    a, b, c = (home.master(name, port) for port, name in enumerate("abc", start=1))
    home.config(f'access = "{c}"')
    assert home.found() == "c"
    home.environ["CIEL_ACCESS"] = str(b)
    assert home.found() == "b"
    home.environ["CIEL_MASTER"] = "localhost:3"
    assert home.found(access=a) == "a"


def test_a_given_address_is_kept_when_the_key_comes_from_a_given_file(home: Home) -> None:
    carried = home.master("far", 1)
    location = find_master("http://node7:9000", str(carried), home.environ)
    assert location is not None
    assert (location.url, location.control) == ("http://node7:9000", "node7:9000")
    assert location.cluster_id == "far"


def test_an_address_of_this_host_uses_the_control_address_of_its_file(home: Home) -> None:
    home.master("near", 8000)
    for spelling in ("localhost", "127.0.0.1:8000", "http://[::1]/", "https://LOCALHOST:8000"):
        location = find_master(spelling, None, home.environ)
        assert location is not None
        assert location.control == "unix:/run/near"


def test_the_location_names_the_origin_of_the_setting(home: Home) -> None:
    path = home.master("a", 1)
    home.config('# mine\n\nmaster = "localhost:1"')
    location = find_master(None, None, home.environ)
    assert location is not None
    assert location.origin.endswith("config.toml line 3")
    location = find_master(None, str(path), home.environ)
    assert location is not None
    assert location.origin == f"--access ({path})"


def test_location_shows_no_key(home: Home) -> None:
    home.master("a", 1)
    location = find_master("localhost:1", None, home.environ)
    assert location is not None
    assert location.key.text() not in repr(location)


def test_the_error_for_an_address_without_a_key_lists_the_searched_places(home: Home) -> None:
    expected = access_path(home.environ, "node7", 8000)
    with pytest.raises(AccessDeniedError, match="--master") as caught:
        find_master("node7", None, home.environ)
    assert str(expected) in str(caught.value)
    assert "CIEL_ACCESS" in str(caught.value)


def test_a_given_access_file_must_exist(home: Home) -> None:
    home.environ["CIEL_ACCESS"] = "/nowhere/access.json"
    with pytest.raises(AccessDeniedError, match=r"CIEL_ACCESS names /nowhere/access\.json"):
        home.found()


def test_an_untrusted_access_file_is_an_error(home: Home) -> None:
    home.master("a", 1).chmod(0o644)
    with pytest.raises(AccessFileError, match="chmod"):
        home.found("localhost:1")


def test_a_stale_current_link_is_ignored(home: Home) -> None:
    point_current(home.environ, home.master("a", 1, alive=False))
    assert home.found() is None


def test_a_stale_access_file_still_gives_its_key_for_a_given_address(home: Home) -> None:
    home.master("a", 1, alive=False)
    assert home.found("localhost:1") == "a"


def test_empty_variables_and_flags_are_ignored(home: Home) -> None:
    home.environ.update(CIEL_MASTER="", CIEL_ACCESS="", CIEL_CONFIG="")
    assert find_master("", "", home.environ) is None


def test_a_relative_access_path_is_relative_to_the_configuration_file(home: Home) -> None:
    path = home.master("a", 1)
    config = home.config('access = "mine.json"')
    path.rename(config.with_name("mine.json"))
    assert home.found() == "a"


def test_a_given_configuration_file_replaces_the_default_one(home: Home, tmp_path: Path) -> None:
    home.master("a", 1)
    home.config('master = "localhost:2"')
    other = tmp_path / "other.toml"
    other.write_text('master = "localhost:1"')
    home.environ["CIEL_CONFIG"] = str(other)
    assert home.found() == "a"


def test_a_given_configuration_file_must_exist(home: Home) -> None:
    home.environ["CIEL_CONFIG"] = "/nowhere.toml"
    with pytest.raises(SettingsError, match=r"/nowhere\.toml: no such file"):
        home.found()


@pytest.mark.parametrize(
    "text, message",
    [
        ('master = "a"\n\nmastr = "b"', r"config\.toml line 3: unknown setting 'mastr'"),
        ('\n[server]\nmaster = "a"', r"config\.toml line 2: unknown setting 'server'"),
        ("\nmaster = 8000", r"config\.toml line 2: master must be a text"),
        ('master = ""', r"config\.toml line 1: master must be a text"),
        ("master = \n", r"config\.toml: .*line 1, column 10"),
        ('master = "ftp://x"', r"config\.toml line 1: 'ftp://x' is not a master"),
        ("x = " + "[" * 5000, r"config\.toml: "),
    ],
)
def test_a_fault_in_the_configuration_names_file_and_line(
    home: Home, text: str, message: str
) -> None:
    home.config(text)
    with pytest.raises(SettingsError, match=message):
        home.found()


def test_settings_are_listed_with_their_origins(home: Home) -> None:
    path = home.config('access = "/x"\nmaster = "a"')
    home.environ["CIEL_MASTER"] = "b"
    listed = {name: (setting.value, setting.origin) for name, setting in Settings({}, home.environ)}
    assert listed == {"access": ("/x", f"{path} line 1"), "master": ("b", "CIEL_MASTER")}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("h", ("http://h:8000", "h", 8000)),
        ("h:1", ("http://h:1", "h", 1)),
        ("https://H:1/", ("https://h:1", "h", 1)),
        ("[::1]:5", ("http://[::1]:5", "::1", 5)),
        ("10.0.0.1", ("http://10.0.0.1:8000", "10.0.0.1", 8000)),
        ("a-b.c_d.e.:65535", ("http://a-b.c_d.e.:65535", "a-b.c_d.e.", 65535)),
    ],
)
def test_an_address_may_be_abbreviated(text: str, expected: tuple[str, str, int]) -> None:
    assert parse_address(text, "--master") == expected


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ":1", "h:x", "h:99999", "h:0", "h:-1", "ftp://h", "http://", "http://u:p@h", "h/x",
        "h?x", "h#x", "[::1", "::1", "[h]", "..", "../x:1", "a b", "a\nb", "a\0b", "-h", "\xe9",
        "\udcff", "x" * 64, "x." * 130,
    ],
)  # fmt: skip
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--master: .* is not a master"):
        parse_address(text, "--master")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_listening_on_loopback_needs_no_key(host: str) -> None:
    require_safe_listen(host, has_key=False, new_key=False)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "node7", "127.evil.org"])
def test_listening_on_other_addresses_needs_a_key(host: str) -> None:
    with pytest.raises(UnsafeListenError, match="--new-key"):
        require_safe_listen(host, has_key=False, new_key=False)
    require_safe_listen(host, has_key=True, new_key=False)
    require_safe_listen(host, has_key=False, new_key=True)
