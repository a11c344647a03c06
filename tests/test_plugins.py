from pathlib import Path

import pytest

from ciel import plugins
from ciel.plugins import PluginError


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a third-party package that adds an executor, and some plugins that cannot be
    loaded.
    """
    metadata = tmp_path / "thirdparty-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[ciel.executors]\n"
        "third = third_party_executor:Third\n"
        "gone = third_party_nowhere:Third\n"
        "nameless = third_party_executor:Fourth\n"
    )
    (tmp_path / "third_party_executor.py").write_text("class Third:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_our_stores_and_executors_are_installed() -> None:
    assert {"disk", "shm"} <= set(plugins.names("ciel.stores"))
    assert {"init", "stdinout", "sync"} <= set(plugins.names("ciel.executors"))


@pytest.mark.parametrize("group", plugins.GROUPS)
def test_every_installed_plugin_can_be_loaded(group: str) -> None:
    for name in plugins.names(group):
        found = plugins.load(group, name)
        assert callable(found.open_private if group == "ciel.places" else found)


def test_a_store_is_loaded_by_its_name() -> None:
    assert plugins.load("ciel.stores", "disk").__name__ == "open_disk"


@pytest.mark.usefixtures("third_party")
def test_a_third_party_adds_a_plugin_by_its_own_metadata() -> None:
    assert "third" in plugins.names("ciel.executors")
    assert plugins.load("ciel.executors", "third").__name__ == "Third"


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize("name", ["gone", "nameless"])
def test_a_plugin_that_cannot_be_loaded_is_one_clear_error(name: str) -> None:
    with pytest.raises(PluginError, match=f"executor '{name}': cannot be loaded: ") as caught:
        plugins.load("ciel.executors", name)
    assert (caught.value.group, caught.value.name) == ("ciel.executors", name)
    assert caught.value.__cause__ is not None


def test_the_error_for_an_unknown_plugin_lists_the_installed_ones() -> None:
    with pytest.raises(PluginError, match=r"store 'tape': not installed \(there is: .*disk.*shm"):
        plugins.load("ciel.stores", "tape")


def test_an_empty_group_has_no_names() -> None:
    assert plugins.names("ciel.nonsense") == []
