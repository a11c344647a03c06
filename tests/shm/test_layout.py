from hypothesis import given
from hypothesis import strategies as st

from ciel.shm.layout import (
    SOCKET_PATH_MAX_BYTES,
    fits_socket,
    group_prefix,
    member_of_store,
    member_of_worker,
    path_through,
)

hosts = st.one_of(
    st.text("abcdefghijklmnopqrstuvwxyz0123456789.-", min_size=1, max_size=253),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
)
netlocs = st.builds(lambda host, port: f"{host}:{port}", hosts, st.integers(1, 65535))


@given(st.text(max_size=300), st.integers(0, 2**32 - 1), netlocs)
def test_every_name_fits_a_socket_and_is_one_line_without_a_space(
    group: str, user_id: int, netloc: str
) -> None:
    prefix = group_prefix(group, user_id, "mnt:[4026531841]")
    for member in (member_of_worker(netloc), member_of_store(group)):
        name = prefix + member
        assert fits_socket(name)
        assert name.isascii()
        assert name.isprintable()
        assert " " not in name


@given(st.lists(netlocs, min_size=2, max_size=5, unique=True))
def test_workers_have_names_of_their_own(places: list[str]) -> None:
    assert len({member_of_worker(netloc) for netloc in places}) == len(places)


def test_a_group_is_apart_for_each_user_and_each_view_of_files() -> None:
    prefixes = {
        group_prefix(group, user_id, space)
        for group in ("a", "b")
        for user_id in (0, 1000)
        for space in ("mnt:[1]", "mnt:[2]")
    }
    assert len(prefixes) == 8


def test_a_path_fits_up_to_the_last_byte() -> None:
    assert fits_socket("/" + "x" * (SOCKET_PATH_MAX_BYTES - 1))
    assert not fits_socket("/" + "x" * SOCKET_PATH_MAX_BYTES)
    assert not fits_socket("/" + "é" * 60)
    assert fits_socket(path_through(2**31, "socket"))
