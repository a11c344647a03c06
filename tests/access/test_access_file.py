import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ciel.access import access_file
from ciel.access.access_file import AccessFile, key_for_start, process_start, read
from ciel.access.errors import AccessFileError, AccessFileMissingError
from ciel.access.keys import Key
from ciel.access.paths import (
    access_path,
    current_path,
    drop_current,
    host_name,
    normalise_host,
    point_current,
)

KEY = Key(bytes(range(32)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ciel" / f"localhost@{host_name()}_8000" / "access.json"


def ours() -> AccessFile:
    pid = os.getpid()
    start = process_start(pid)
    assert start is not None
    return AccessFile("http://127.0.0.1:8000", "unix:/run/x", "c1", KEY, pid, start)


def written(path: Path, **changes: Any) -> Path:
    ours().write(path)
    fields = json.loads(path.read_text())
    fields.update(changes)
    path.write_text(json.dumps({name: fields[name] for name in fields if fields[name] != "gone"}))
    return path


def test_a_written_file_can_be_read(path: Path) -> None:
    ours().write(path)
    assert read(path) == ours()


def test_the_file_has_the_documented_fields(path: Path) -> None:
    ours().write(path)
    names = ["version", "url", "control", "cluster_id", "key", "pid", "pid_start"]
    assert list(json.loads(path.read_text())) == names


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_file_and_directories_are_private_under_any_umask(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        ours().write(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.parent.parent.stat().st_mode & 0o777 == 0o700


def test_writing_leaves_no_other_file(path: Path) -> None:
    ours().write(path)
    ours().write(path)
    assert list(path.parent.iterdir()) == [path]


def test_writing_replaces_a_planted_link_and_leaves_its_target(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path.parent.mkdir(parents=True, mode=0o700)
    path.symlink_to(victim)
    ours().write(path)
    assert victim.read_text() == "precious"
    assert not path.is_symlink()


def test_a_directory_that_other_users_may_write_is_refused(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.parent.chmod(0o777)
    with pytest.raises(AccessFileError, match=r"chmod go= .*localhost@.*_8000"):
        ours().write(path)
    assert not path.exists()


def test_a_directory_that_cannot_be_created_is_one_clear_error(path: Path) -> None:
    path.parent.parent.mkdir(parents=True)
    path.parent.write_text("a file in the way")
    with pytest.raises(AccessFileError, match="File exists"):
        ours().write(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o660, 0o601])
def test_a_file_open_to_other_users_is_refused_with_the_remedy(path: Path, mode: int) -> None:
    ours().write(path)
    path.chmod(mode)
    with pytest.raises(AccessFileError) as caught:
        read(path)
    assert f"chmod go= {path}" in str(caught.value)
    cure = caught.value.reason.partition("type: ")[2]
    subprocess.run(cure, shell=True, check=True)
    assert read(path) == ours()


def test_file_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours().write(path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(AccessFileError, match="belongs to user"):
        read(path)


def test_link_is_followed_and_its_target_checked(path: Path, tmp_path: Path) -> None:
    ours().write(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read(link) == ours()
    path.chmod(0o644)
    with pytest.raises(AccessFileError, match="other users can access it"):
        read(link)


def test_fifo_is_refused_without_waiting(path: Path) -> None:
    path.parent.mkdir(parents=True)
    os.mkfifo(path, 0o600)
    with pytest.raises(AccessFileError, match="not a regular file"):
        read(path)


def test_directory_in_its_place_is_refused_and_no_descriptor_leaks(path: Path) -> None:
    path.mkdir(parents=True)
    open_before = os.listdir("/proc/self/fd")
    with pytest.raises(AccessFileError, match="not a regular file"):
        read(path)
    assert os.listdir("/proc/self/fd") == open_before


@pytest.mark.parametrize("name", ["nowhere/access.json", "file/access.json", "dangling"])
def test_missing_file_has_its_own_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    with pytest.raises(AccessFileMissingError):
        read(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "1", "null", "{", "[" * 50_000, '{"version":1}', "\udcff", "{}" + " " * 70_000],
)
def test_a_file_with_invalid_content_is_refused(path: Path, text: str) -> None:
    ours().write(path)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(AccessFileError):
        read(path)


@pytest.mark.parametrize(
    "name", ["version", "url", "control", "cluster_id", "key", "pid", "pid_start"]
)
@pytest.mark.parametrize("value", ["gone", None, True, [], {}])
def test_missing_or_mistyped_field_is_named(path: Path, name: str, value: object) -> None:
    with pytest.raises(AccessFileError, match=f'"{name}"'):
        read(written(path, **{name: value if value != "gone" or name == "key" else None}))


@pytest.mark.parametrize(
    "name, value",
    [
        ("url", ""), ("url", "::"), ("url", "http://a\0b"), ("url", "file:///etc/passwd"),
        ("control", ""), ("control", "unix:"), ("control", "unix:@a\nb"), ("control", "nonsense:x"),
        ("control", "unix:@" + "x" * 200), ("cluster_id", ""), ("cluster_id", "../x"),
        ("cluster_id", "x" * 200), ("pid", 0), ("pid", -1), ("pid", 10**30), ("pid_start", -1),
    ],
)  # fmt: skip
def test_a_field_with_an_invalid_value_is_named(path: Path, name: str, value: object) -> None:
    with pytest.raises(AccessFileError, match=f'"{name}" .*; remove it, or copy it again'):
        read(written(path, **{name: value}))


def test_a_future_version_is_refused_with_a_reason(path: Path) -> None:
    with pytest.raises(AccessFileError, match=r"newer ciel wrote it \(format 2; .* upgrade ciel"):
        read(written(path, version=2))


def test_unknown_fields_are_ignored(path: Path) -> None:
    assert read(written(path, tls="later")) == ours()


@pytest.mark.parametrize("key", ["", "x" * 64, KEY.text()[:-1]])
def test_no_error_repeats_the_key(path: Path, key: str) -> None:
    with pytest.raises(AccessFileError) as caught:
        read(written(path, key=key))
    assert not key or key not in str(caught.value)


def test_access_file_shows_no_key() -> None:
    assert KEY.text() not in repr(ours())


def test_the_first_start_creates_a_key_and_a_restart_reuses_it(path: Path) -> None:
    cluster_id, key = key_for_start(path)
    ours()._replace(cluster_id=cluster_id, key=key).write(path)
    assert key_for_start(path) == (cluster_id, key)


def test_new_key_rotates_within_the_cluster(path: Path) -> None:
    ours().write(path)
    cluster_id, key = key_for_start(path, new_key=True)
    assert cluster_id == "c1"
    assert key != KEY


def test_untrusted_file_is_never_replaced_by_a_new_key(path: Path) -> None:
    ours().write(path)
    path.chmod(0o644)
    for new_key in (False, True):
        with pytest.raises(AccessFileError):
            key_for_start(path, new_key=new_key)


def test_running_process_is_alive() -> None:
    assert ours().is_alive()


def test_recycled_process_id_is_not_alive() -> None:
    assert not ours()._replace(pid_start=ours().pid_start - 1).is_alive()


def test_ended_process_is_not_alive_even_before_it_is_reaped() -> None:
    child = subprocess.Popen(["true"])
    start = process_start(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(child.pid) is None
    child.wait()
    assert not ours()._replace(pid=child.pid, pid_start=start or 0).is_alive()


def test_start_time_is_read_past_a_hostile_command_name(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to("/bin/cat")
    with subprocess.Popen([program], stdin=subprocess.PIPE) as child:
        assert (process_start(child.pid) or 0) >= ours().pid_start


def test_a_process_unlinks_its_own_file(path: Path) -> None:
    ours().write(path)
    assert ours().unlink_if_ours(path)
    assert not path.exists()
    assert not ours().unlink_if_ours(path)


def test_the_file_of_a_successor_stays(path: Path) -> None:
    ours()._replace(pid=ours().pid + 1).write(path)
    assert not ours().unlink_if_ours(path)
    assert path.exists()


@pytest.mark.parametrize(
    "host, name",
    [
        ("localhost", "localhost"),
        ("LocalHost.", "localhost"),
        ("127.0.0.1", "localhost"),
        ("::1", "localhost"),
        ("[::1]", "localhost"),
        ("Node-7.Example.org", "node-7.example.org"),
        ("fe80::1", "fe80::1"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_each_host_has_one_directory(host: str, name: str) -> None:
    assert normalise_host(host) == name
    environ = {"XDG_STATE_HOME": "/s", "HOME": "/h"}
    directory = f"localhost@{host_name()}" if name == "localhost" else name
    assert access_path(environ, host, 8000) == Path(f"/s/ciel/{directory}_8000/access.json")


@pytest.mark.parametrize("host", ["", "..", "../x", "a/b", "a\0b", "a b", ".x", "-x", "é"])
def test_host_that_would_leave_the_directory_is_refused(host: str) -> None:
    with pytest.raises(AccessFileError, match="not a host name"):
        access_path({"XDG_STATE_HOME": "/s"}, host, 8000)


def test_relative_or_missing_state_home_means_the_default() -> None:
    for environ in ({"HOME": "/h"}, {"HOME": "/h", "XDG_STATE_HOME": "rel"}):
        expected = Path(f"/h/.local/state/ciel/localhost@{host_name()}_1/access.json")
        assert access_path(environ, "localhost", 1) == expected


def test_current_points_at_the_last_master_and_only_that_one_removes_it(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    first, second = (access_path(environ, "localhost", port) for port in (1, 2))
    for path in (first, second):
        ours().write(path)
        point_current(environ, path)
    assert current_path(environ).readlink() == second
    assert access_file.read(current_path(environ)) == ours()
    drop_current(environ, first)
    assert current_path(environ).is_symlink()
    drop_current(environ, second)
    assert not current_path(environ).is_symlink()
    names = {f"localhost@{host_name()}_{port}" for port in (1, 2)}
    assert {entry.name for entry in (tmp_path / "ciel").iterdir()} == names
