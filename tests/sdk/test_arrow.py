"""Tables of Arrow in programs in C, compiled with sanitizers (POOL-2, docs/protocol/tables.md)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from ciel.python import arrow_tables
from ciel.testing.stand_in import StandIn

REF = {"__ref__": ["f2", "a"]}
OUT = {"ref": {"__ref__": ["c2", "t:out:0", 0, []]}}

PROGRAM = """\
#include <ciel_arrow.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char *argv[])
{
    ciel_init(argv[argc - 3], argv[argc - 1]);
    json_t *task = ciel_get_task();
    json_t *first = json_array_get(json_object_get(task, "proc_pargs"), 0);
    struct ArrowArrayStream stream;
    struct ArrowSchema schema;
    struct ArrowArray chunk;
    if (ciel_arrow_read(first, &stream) != 0) {
        json_decref(task);
        return 7;
    }
    if (stream.get_schema(&stream, &schema) != 0)
        return 8;
%s
    json_decref(task);
    return 0;
}
"""

COPY = """
    struct ciel_arrow_output *output = ciel_arrow_begin(0, &schema);
    while (stream.get_next(&stream, &chunk) == 0 && chunk.release) {
        if (ciel_arrow_append(output, &chunk) != 0)
            return 9;
        chunk.release(&chunk);
    }
    json_decref(ciel_arrow_commit(output));
    schema.release(&schema);
    stream.release(&stream);
    ciel_exit();
"""

# The values lie in the output, twice as large as in the input; the validity is copied.
DOUBLE = """
    struct ciel_arrow_output *output = ciel_arrow_begin(0, &schema);
    while (stream.get_next(&stream, &chunk) == 0 && chunk.release) {
        struct ArrowArray *column = chunk.children[0];
        const int64_t *values = column->buffers[1];
        int64_t *doubled = ciel_arrow_allocate(output, (column->offset + column->length) * 8);
        if (doubled == NULL || (uintptr_t)doubled % 128 != 0)
            return 9;
        for (int64_t n = 0; n < column->length; n++)
            doubled[column->offset + n] = 2 * values[column->offset + n];
        column->buffers[1] = doubled;
        if (ciel_arrow_append(output, &chunk) != 0)
            return 9;
        column->buffers[1] = values;
        chunk.release(&chunk);
    }
    if (ciel_arrow_allocate(output, -1) || ciel_arrow_allocate(output, INT64_MAX / 4))
        return 10;
    json_decref(ciel_arrow_commit(output));
    schema.release(&schema);
    stream.release(&stream);
    ciel_exit();
"""

# The chunk lives longer than its stream, and the column longer than its chunk.
SUM = """
    struct ArrowArray column;
    int64_t sum = 0;
    if (stream.get_next(&stream, &chunk) != 0 || strcmp(schema.children[0]->format, "l") != 0)
        return 9;
    schema.release(&schema);
    stream.release(&stream);
    column = *chunk.children[0];
    chunk.children[0]->release = NULL;
    chunk.release(&chunk);
    const int64_t *values = column.buffers[1];
    for (int64_t n = 0; n < column.length; n++)
        sum += values[column.offset + n];
    column.release(&column);
    char text[30];
    snprintf(text, sizeof text, "%lld", (long long)sum);
    ciel_define_output_with_plain_string(0, text);
    ciel_exit();
"""

# The descriptor follows the buffers.
DAMAGE = """
    FILE *file = fopen("PATH", "r+");
    fseek(file, PLACE, SEEK_SET);
    for (int n = 0; n < SIZE; n++)
        fputc(0xff, file);
    fclose(file);
"""

Compile = Callable[..., str]
Start = Callable[..., StandIn]


@pytest.fixture
def reader(compiled: Compile, programs: Start, tmp_path: Path) -> Start:
    """Start a program that reads an object with this content."""

    def start(body: str, content: bytes) -> StandIn:
        (tmp_path / "in").write_bytes(content)
        program = programs(compiled(PROGRAM.replace("%s", body)))
        program.start_task(REF)
        program.answer("open_ref", {"filename": str(tmp_path / "in")})
        return program

    return start


def content_of(value: pa.Table) -> bytes:
    return b"".join(map(bytes, arrow_tables.encode(value, 0.0)))


def test_a_program_copies_a_table(reader: Start, tmp_path: Path) -> None:
    table = pa.table({
        "n": pa.array([1, None, 3] * 100),
        "text": pa.array(["a", "", None] * 100).dictionary_encode(),
        "parts": pa.array([[{"x": 1.5}], None, []] * 100),
        "view": pa.array(["x" * 40, None, "y"] * 100, pa.string_view()),
    })  # fmt: skip
    table = pa.concat_tables([table, table.slice(7, 200), table.slice(0, 0)])
    program = reader(COPY, content_of(table))
    program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
    size_bytes = program.answer("close_output", OUT)["size"]
    assert program.hear() == ("exit", {"keep_process": "no"})
    assert (program.status(), program.errors()) == (0, "")
    content = (tmp_path / "out").read_bytes()
    assert len(content) == size_bytes
    copy = arrow_tables.read(memoryview(content))
    copy.validate(full=True)
    assert copy.equals(table)


@pytest.mark.parametrize("chunks, rows", [(1, 0), (1, 1000), (50, 10), (5, 200_000)])
def test_a_program_makes_a_table_in_its_output(
    reader: Start, tmp_path: Path, chunks: int, rows: int
) -> None:
    """Buffers of `ciel_arrow_allocate` are not copied, and the file ends where the table ends."""
    table = pa.concat_tables([pa.table({"n": pa.array([*range(rows), None], pa.int64())})] * chunks)
    program = reader(DOUBLE, content_of(table))
    program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
    size_bytes = program.answer("close_output", OUT)["size"]
    assert program.hear() == ("exit", {"keep_process": "no"})
    assert (program.status(), program.errors()) == (0, "")
    content = (tmp_path / "out").read_bytes()
    assert len(content) == size_bytes < 8.2 * table.num_rows + 1000 * chunks + 1000
    doubled = arrow_tables.read(memoryview(content))
    doubled.validate(full=True)
    assert doubled["n"].to_pylist() == [n and 2 * n for n in table["n"].to_pylist()]


def test_what_was_read_lives_until_its_last_user_releases_it(reader: Start) -> None:
    program = reader(SUM, content_of(pa.table({"n": range(1000)})))
    program.answer("publish_string", {"ref": {"__ref__": ["val", "t:out:0", ""]}})
    assert program.hear() == ("exit", {"keep_process": "no"})
    assert (program.status(), program.errors()) == (0, "")


def test_a_descriptor_that_is_changed_later_is_not_trusted(reader: Start, tmp_path: Path) -> None:
    content = content_of(pa.table({"n": range(1000)}))
    place, size_bytes = arrow_tables.place_of_descriptor(content, len(content))
    damage = DAMAGE.replace("PATH", str(tmp_path / "in"))
    damage = damage.replace("PLACE", str(place)).replace("SIZE", str(size_bytes))
    program = reader(damage + SUM, content)
    text = program.answer("publish_string", {"ref": {"__ref__": ["val", "t:out:0", ""]}})["str"]
    assert base64.b64decode(text) == b"499500"
    assert program.hear() == ("exit", {"keep_process": "no"})
    assert (program.status(), program.errors()) == (0, "")
    assert (tmp_path / "in").read_bytes() != content


def test_the_documented_program_sums_a_column(
    compiled: Compile, programs: Start, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "programs.md").read_text()
    _, _, source = page.partition("```c table\n")
    (tmp_path / "in").write_bytes(content_of(pa.table({"n": range(1000)})))
    program = programs(compiled(source.partition("```")[0]))
    program.start_task(REF)
    program.answer("open_ref", {"filename": str(tmp_path / "in")})
    text = program.answer("publish_string", {"ref": {"__ref__": ["val", "t:out:0", ""]}})["str"]
    assert base64.b64decode(text) == b"499500"


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"hello", "it is no table of ciel"),
        (b"", "it is empty"),
        (b"ciel.ar1" + b"\xff" * 16, "its descriptor lies outside of the object"),
    ],
)
def test_other_objects_are_refused(reader: Start, content: bytes, reason: str) -> None:
    program = reader(COPY, content)
    assert program.status() == 7
    assert reason in program.errors()
