import pytest

from ciel.net.paths import PathTable


def table() -> PathTable[str]:
    paths: PathTable[str] = PathTable()
    for path in ("/", "/data", "/data/{id}", "/data/new", "/control/data/{id}", "/{kind}/of/{id}"):
        paths.add(path, path)
    return paths


@pytest.mark.parametrize(
    "asked, path, params",
    [
        (b"/", "/", {}),
        (b"/data", "/data", {}),
        (b"/data/", "/data", {}),
        (b"/data/a:out:0", "/data/{id}", {"id": "a:out:0"}),
        (b"/data/new", "/data/new", {}),
        (b"/control/data/x", "/control/data/{id}", {"id": "x"}),
        (b"/task/of/7", "/{kind}/of/{id}", {"kind": "task", "id": "7"}),
        (b"/data/a%2Fb", "/data/{id}", {"id": "a/b"}),
        (b"/data/%C3%A9", "/data/{id}", {"id": "é"}),
        (b"/data/..", "/data/{id}", {"id": ".."}),
    ],
)
def test_a_path_is_found_with_its_parameters(
    asked: bytes, path: str, params: dict[str, str]
) -> None:
    assert table().find(asked) == (path, params)


@pytest.mark.parametrize(
    "asked",
    [
        *(b"", b"*", b"//", b"/nothing", b"/data/x/y", b"/data//", b"/control"),
        *(b"/data/%ff", b"/\xff", b"http://host/data", b"data"),
    ],
)
def test_unknown_paths_are_not_found(asked: bytes) -> None:
    assert table().find(asked) is None


def test_every_path_is_listed() -> None:
    assert sorted(path for path, _ in table()) == sorted(
        ["/", "/data", "/data/{id}", "/data/new", "/control/data/{id}", "/{kind}/of/{id}"]
    )


@pytest.mark.parametrize("path", ["/data", "/data/", "/data/{name}"])
def test_a_path_can_be_added_only_once(path: str) -> None:
    with pytest.raises(ValueError, match="is served already"):
        table().add(path, "again")
