import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel import plugins
from ciel.plugins import PluginError
from ciel.storage.specs import StoreKind


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
    assert isinstance(plugins.load("ciel.stores", "disk"), StoreKind)


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


# --- stores are known by the name that a user gives, and by no other ------------------------------

ROOT = Path(__file__).parents[1]
WITHOUT_STORES = ("client", "cli", "master", "worker", "launch", "access", "net", "execution")
STORE_WORDS = re.compile(r"(?<!/dev/)(?<!--)\b(?:shm|scc)\b|^disk(?:$|[:,])|\bciel-arena\b")
"""The names of our stores, but not the directory `/dev/shm`, and not the option `--shm-size`."""
NOT_A_STORE = {
    ("ciel/master/state/workers.py", "disk"),  # an attribute: the queue of a worker's disk
    ("ciel/worker/state/orders.py", "disk"),  # an attribute: whether an attempt may use its disk
}


def texts(path: Path) -> Iterator[str]:
    """Yield the texts of a module, without docstrings; a name in an import counts as a text."""
    tree = ast.parse(path.read_text())
    documents = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }  # a text that is a statement
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in documents:
                yield node.value
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.requirement("CIB-54")
def test_no_component_knows_a_store_by_its_name() -> None:
    found = {
        (str(path.relative_to(ROOT)), text)
        for component in WITHOUT_STORES
        for path in (ROOT / "ciel" / component).rglob("*.py")
        for text in texts(path)
        if STORE_WORDS.search(text)
    }
    assert found == NOT_A_STORE


@pytest.mark.requirement("CIB-54")
@pytest.mark.parametrize(
    "line",
    ["if name in ('shm', 'scc'): pass", "x = f'scc-{y}'", "D = 'disk'", "from ciel.scc import a"],
)
def test_the_search_for_names_of_stores_finds_them(tmp_path: Path, line: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(f'"""A shm."""\nROOT = "/dev/shm/ciel"\n{line}\n')
    assert [text for text in texts(module) if STORE_WORDS.search(text)]
