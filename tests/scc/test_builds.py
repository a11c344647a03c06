"""The compiled modules agree with the headers."""

import runpy
from pathlib import Path

import pytest

from ciel.scc.builds import load

SCC = Path(__file__).parents[2] / "scc"
RECIPE = runpy.run_path(str(SCC / "build_ffi.py"))


@pytest.mark.parametrize("name", sorted(RECIPE["MODULES"]))
def test_every_part_is_built_and_has_the_functions_of_its_header(name: str) -> None:
    part, _, build = name.removeprefix("_").partition("_")
    module = load(part, build or "coherent")
    ffi = RECIPE["MODULES"][name]()
    functions = [key.split()[1] for key in ffi._parser._declarations if key.startswith("function ")]
    assert len(functions) > 3
    assert [function for function in functions if not hasattr(module.lib, function)] == []


def test_a_header_is_read_without_its_directives_and_sizes_of_arrays() -> None:
    header = """
    /* of no use: int x(void); */
    #ifndef A_H
    #define A_H
    #include <stdint.h>
    #ifdef __cplusplus
    extern "C" {
    #endif
    #define A_MAX 5 // a number
    #define A_CALL(x) \\
        ((x) + 1)
    struct a {
        char name[A_MAX + 1];
        char code[4];
    };
    int a_do(char name[A_MAX + 1], const char code[4]);
    #ifdef __cplusplus
    }
    #endif
    #endif
    """
    lines = "\n".join(line.removeprefix("    ") for line in header.splitlines())
    assert RECIPE["declarations"](lines).split() == [
        "#define", "A_MAX", "...", "struct", "a", "{", "char", "name[...];", "char", "code[4];",
        "};", "int", "a_do(char", "name[],", "const", "char", "code[4]);",
    ]  # fmt: skip


def test_all_sources_belong_to_a_part() -> None:
    used = {path.name for name in RECIPE["PARTS"] for path in RECIPE["sources"](name, "coherent")}
    builds = {f"{name}.c" for names in RECIPE["BUILDS"].values() for name in names}
    assert {path.name for path in (SCC / "src").glob("*.c")} == used | builds
