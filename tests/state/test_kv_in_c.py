"""Programs in C share rows with Python by `ciel_kv.h`, with real daemons (KVB-2, KVB-3)."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest

import ciel
from ciel.access.keys import Key, Role
from ciel.state.bases.replies import Replies, pack_command
from ciel.state.errors import LeaseLostError
from ciel.state.keyvalues import KeyValues
from ciel.state.leases import WAKE_S
from ciel.state.opening import open_kv
from ciel_tests.installed.languages import is_there
from ciel_tests.kv_daemons import KvDaemon
from ciel_tests.redis_server import REDIS, free_port, redis_server

SDK: Final = Path(__file__).parents[2] / "executors" / "sdk" / "c"
FLAGS: Final = (
    "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror",
    "-D_GNU_SOURCE", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-pthread",
)  # fmt: skip

# Carries out one request a line, with fields separated by tabs; prints the status, and the result
# or the reason. Bytes are hexadecimal digits.
DRIVER: Final = r"""
#include <ciel_kv.h>
#include <ciel_kv_pages.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 400, ROUNDS = 25, THREADS = 4 };

static struct ciel_kv *kv;
static struct ciel_kv_lease *lease;
static char *words[WORDS];
static int count;

static int is(const char *verb) { return strcmp(words[0], verb) == 0; }

static double seconds(int at) { return at < count ? atof(words[at]) : 0; }

static size_t unhex(char *text)
{
    size_t size = strlen(text) / 2;
    for (size_t i = 0; i < size; i++) {
        unsigned byte;
        sscanf(text + 2 * i, "%2x", &byte);
        text[i] = (char)byte;
    }
    return size;
}

static void print_hex(const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        printf("%02x", ((const unsigned char *)bytes)[i]);
}

static void print_row(const struct ciel_kv_row *row)
{
    static const char *kinds[] = {"nothing", "json", "bytes", "pickle"};
    printf("\t%s=%s:", row->key, kinds[row->kind]);
    if (row->kind == CIEL_KV_BYTES)
        print_hex(row->value, row->value_bytes);
    else if (row->value)
        printf("%s", row->value);
}

static int print_each(void *context, const struct ciel_kv_row *row)
{
    int *left = context;
    print_row(row);
    return --*left == 0 ? 77 : 0;
}

static void *increment(void *unused)
{
    for (int i = 0; i < ROUNDS; i++)
        if (ciel_kv_increment(kv, "threads", 1, NULL))
            return unused ? unused : "";
    return NULL;
}

static int run_threads(void)
{
    pthread_t threads[THREADS];
    void *result;
    int wrong = 0;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, increment, NULL);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &result);
        wrong |= result != NULL;
    }
    return wrong;
}

static int in_child(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        status = ciel_kv_increment(kv, "forked", 1, NULL);
        ciel_kv_close(kv);
        _exit(status);
    }
    waitpid(pid, &status, 0);
    return WEXITSTATUS(status);
}

static int bulk_put(void)
{
    struct ciel_kv_pair pairs[WORDS];
    size_t n = 0;
    for (int i = 1; i + 1 < count; i += 2)
        pairs[n++] = (struct ciel_kv_pair){.key = words[i], .json = words[i + 1]};
    return ciel_kv_bulk_put(kv, pairs, n);
}

static int bulk_many(size_t n, const char *json)
{
    struct ciel_kv_pair *pairs = calloc(n, sizeof *pairs);
    char *keys = malloc(n * 16);
    int status;
    for (size_t i = 0; i < n; i++) {
        snprintf(keys + 16 * i, 16, "many/%06zu", i);
        pairs[i] = (struct ciel_kv_pair){.key = keys + 16 * i, .json = json};
    }
    status = ciel_kv_bulk_put(kv, pairs, n);
    free(keys);
    free(pairs);
    return status;
}

static int get_many(void)
{
    struct ciel_kv_row rows[WORDS];
    size_t n = (size_t)count - 1;
    int status = ciel_kv_get_many(kv, (const char *const *)words + 1, n, rows);
    for (size_t i = 0; i < n && status == 0; i++) {
        print_row(&rows[i]);
        free(rows[i].value);
    }
    return status;
}

static char byte_of(const struct ciel_kv_page *page, size_t at)
{
    return (char)((size_t)((const char *)page->key)[at % page->key_bytes] + at / 7);
}

/* Write, remove or read pages of a size, whose bytes are made from their keys. */
static int use_pages(void)
{
    struct ciel_kv_page pages[WORDS] = {0};
    size_t size = strtoul(words[1], NULL, 10), n = 0;
    int status;
    for (int i = 2; i < count; i++, n++) {
        struct ciel_kv_page *page = pages + n;
        *page = (struct ciel_kv_page){.key = words[i], .key_bytes = strlen(words[i]),
                                      .room_bytes = size, .size_bytes = size};
        page->bytes = malloc(size + 1);
        for (size_t k = 0; k < size; k++)
            ((char *)page->bytes)[k] = is("pset") ? byte_of(page, k) : 0;
    }
    if (is("pset"))
        status = ciel_kv_pages_set(kv, pages, n);
    else if (is("pdelete"))
        status = ciel_kv_pages_delete(kv, pages, n);
    else
        status = ciel_kv_pages_get(kv, pages, n);
    for (size_t i = 0; i < n; i++) {
        size_t wrong = 0, stored = pages[i].size_bytes < size ? pages[i].size_bytes : size;
        for (size_t k = 0; k < stored; k++)
            wrong += ((char *)pages[i].bytes)[k] != byte_of(pages + i, k);
        if (is("pget"))
            printf("\t%d:%zu:%zu", pages[i].status, pages[i].size_bytes, wrong);
        free(pages[i].bytes);
    }
    return status;
}

static int carry_out(void)
{
    char *text = NULL;
    void *bytes = NULL;
    size_t size = 0;
    int64_t sum = 0;
    int status, left = 1 << 30;
    if (is("get")) {
        status = ciel_kv_get(kv, words[1], &text);
        printf("\t%s", text ? text : "");
    } else if (is("getb")) {
        status = ciel_kv_get_bytes(kv, words[1], &bytes, &size);
        printf("\t");
        print_hex(bytes, size);
    } else if (is("put"))
        status = ciel_kv_put(kv, words[1], words[2], seconds(3));
    else if (is("putb"))
        status = ciel_kv_put_bytes(kv, words[1], words[2], unhex(words[2]), seconds(3));
    else if (is("insert"))
        status = ciel_kv_insert(kv, words[1], words[2], seconds(3));
    else if (is("insertb"))
        status = ciel_kv_insert_bytes(kv, words[1], words[2], unhex(words[2]), seconds(3));
    else if (is("update"))
        status = ciel_kv_update(kv, words[1], words[2]);
    else if (is("updateb"))
        status = ciel_kv_update_bytes(kv, words[1], words[2], unhex(words[2]));
    else if (is("cas"))
        status = ciel_kv_compare_and_set(kv, words[1], words[2], words[3]);
    else if (is("casb")) {
        size = unhex(words[2]);
        status = ciel_kv_compare_and_set_bytes(kv, words[1], words[2], size, words[3],
                                               unhex(words[3]));
    } else if (is("delete"))
        status = ciel_kv_delete(kv, words[1]);
    else if (is("increment")) {
        status = ciel_kv_increment(kv, words[1], strtoll(words[2], NULL, 10), &sum);
        printf("\t%lld", (long long)sum);
    } else if (is("bulk"))
        status = bulk_put();
    else if (is("bulkmany"))
        status = bulk_many(strtoul(words[1], NULL, 10), words[2]);
    else if (is("many"))
        status = get_many();
    else if (is("scan")) {
        left = count > 2 ? atoi(words[2]) : left;
        status = ciel_kv_scan(kv, words[1], print_each, &left);
    } else if (is("lock")) {
        status = ciel_kv_lock(kv, words[1], seconds(2), seconds(3), &lease);
        printf("\t%lld", lease ? (long long)ciel_kv_fence(lease) : 0);
    } else if (is("held")) {
        status = 0;
        printf("\t%d", ciel_kv_is_held(lease));
    } else if (is("unlock"))
        status = ciel_kv_unlock(lease);
    else if (is("commit"))
        status = ciel_kv_pages_commit(kv, words[1], strlen(words[1]), words[2], unhex(words[2]));
    else if (words[0][0] == 'p')
        status = use_pages();
    else if (is("threads"))
        status = run_threads();
    else if (is("fork"))
        status = in_child();
    else {
        ciel_kv_set_timeout(kv, seconds(1));
        status = 0;
    }
    free(text);
    free(bytes);
    return status;
}

int main(int argc, char **argv)
{
    static char line[1 << 20];
    kv = argc > 2 ? ciel_kv_open_of_job(argv[1], argv[2]) : ciel_kv_open(argv[1]);
    if (!kv) {
        printf("%d\t%s\n", errno, ciel_kv_why());
        return 1;
    }
    while (fgets(line, sizeof line, stdin)) {
        char *rest = line, *word;
        int status;
        line[strcspn(line, "\n")] = '\0';
        for (count = 0; (word = strsep(&rest, "\t")) != NULL;)
            words[count++] = word;
        status = carry_out();
        printf("\n%d\t%s\n", status, status ? ciel_kv_why() : "");
        fflush(stdout);
    }
    ciel_kv_close(kv);
    return 0;
}
"""

POLL_S: Final = 0.1
ANY_KEY: Final = Key(b"k" * 32, Role.KV)
MISSING, EXISTS, CHANGED, WRONG, INVALID = 2, 17, 125, 74, 22
FULL, LARGE, UNREACHABLE, DENIED, LACKING, TIMEOUT, LOST = 28, 7, 113, 13, 95, 110, 116


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not is_there("cc"):
        pytest.skip("a C compiler is missing")
    directory = tmp_path_factory.mktemp("kv_in_c")
    source = directory / "driver.c"
    source.write_text(DRIVER)
    sources = [str(source), str(SDK / "ciel_kv.c")]
    command = ["cc", *FLAGS, f"-I{SDK}", "-o", str(directory / "driver"), *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory / "driver"


class Driver:
    """A program in C with the rows of a name open."""

    def __init__(self, path: Path, url: str, key_file: Path | None, *words: str) -> None:
        about = {"CIEL_KV": url, "CIEL_KV_KEY_FILE": str(key_file or ""), "CIEL_KV_CLUSTER": "own"}
        self.process = subprocess.Popen(
            [path, *words], env=os.environ | about, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def begin(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(words).encode() + b"\n")
        self.process.stdin.flush()

    def result(self) -> tuple[int, list[str]]:
        """Return the status, and the results, or the reason of an error."""
        assert self.process.stdout is not None
        found = self.process.stdout.readline().rstrip(b"\n").decode()
        status, _, reason = self.process.stdout.readline().rstrip(b"\n").decode().partition("\t")
        assert status, f"the program has ended: {found}"
        return int(status), [reason] if int(status) > 0 and reason else found.split("\t")[1:]

    def ask(self, *words: str) -> tuple[int, list[str]]:
        self.begin(*words)
        return self.result()

    def does(self, *words: str) -> list[str]:
        """Carry out a request that succeeds; return the results."""
        status, results = self.ask(*words)
        assert status == 0, results
        return results

    def status(self, *words: str) -> int:
        return self.ask(*words)[0]

    def end(self) -> None:
        self.process.communicate(timeout=20)
        assert self.process.returncode == 0  # nor has a sanitizer found anything


Start = Callable[..., Driver]


class Place:
    """A base of the tests: its URL, and the key that opens it."""

    database = b"0"

    def __init__(self, url: str, key: Key, key_file: Path | None) -> None:
        self.url = url
        self.key = key
        self.key_file = key_file

    def open(self, name: str = "scores") -> KeyValues:
        return open_kv(self.url, name, self.key)

    def command(self, *words: bytes) -> Any:
        """Return the reply to a command of Redis."""
        where = urlsplit(self.url)
        password = unquote(where.password or "") or self.key.text()
        with socket.create_connection(("127.0.0.1", where.port or 0)) as own:
            replies = Replies(own)
            for sent in ([b"AUTH", password.encode()], [b"SELECT", self.database], [*words]):
                own.sendall(pack_command(sent))
                reply = replies.next()
        return reply


@pytest.fixture(scope="module", params=["ciel-kv", "redis"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("place")
    if request.param == "redis":
        if REDIS is None:
            pytest.skip("redis-server is not installed")
        with redis_server(directory, "--requirepass", "p:w/1") as port:
            place = Place(f"redis://default:p%3Aw%2F1@127.0.0.1:{port}/2", ANY_KEY, None)
            place.database = b"2"
            yield place
    else:
        with KvDaemon(directory / "base", "--sync", "off") as daemon:
            yield place_of(daemon)


def place_of(daemon: KvDaemon) -> Place:
    url = f"ciel-kv://127.0.0.1:{daemon.port}"
    return Place(url, daemon.key, daemon.directory / "password")


@pytest.fixture
def start(compiled: Path) -> Iterator[Start]:
    """Start a program; `name`, and then perhaps a job."""
    with ExitStack() as stack:

        def begin(place: Place, *words: str) -> Driver:
            driver = Driver(compiled, place.url, place.key_file, *(words or ("scores",)))
            stack.callback(driver.end)
            return driver

        yield begin


@pytest.fixture
def c(start: Start, place: Place) -> Driver:
    return start(place)


@pytest.fixture
def kv(place: Place) -> Iterator[KeyValues]:
    with closing(place.open()) as kv:
        kv.clear()
        yield kv


# --- rows -----------------------------------------------------------------------------------------


def test_c_and_python_see_the_same_rows(c: Driver, kv: KeyValues) -> None:
    c.does("put", "a", ' {"x": [1, "b c", null],\t"é" : "\\" \\\\"} '.replace("\t", " "))
    assert kv["a"] == {"x": [1, "b c", None], "é": '" \\'}
    kv.put("b", {"y": "z é"})
    assert c.does("get", "b") == ['{"y":"z é"}']
    c.does("put", "text", '"hello"')
    assert kv["text"] == "hello"
    assert c.does("increment", "n", "5") == ["5"]
    assert kv.increment("n", -7) == -2
    assert c.does("get", "n") == ["-2"]
    c.does("delete", "a")
    assert "a" not in kv


@pytest.mark.parametrize(
    "content",
    [b"hello", b"", b"12", b'{"a": 1}', b" null ", b"\xc0x", b"\xc1x", bytes(range(256)), b"[1,]",
     b"1e999", b"[" * 2000, b'"\xff"', b"x" * 100_000],
)  # fmt: skip
def test_bytes_are_stored_as_python_stores_them(
    c: Driver, kv: KeyValues, place: Place, content: bytes
) -> None:
    kv.put("python", content)
    c.does("putb", "c", content.hex())
    assert kv["c"] == content
    assert c.does("getb", "python") == [content.hex()]
    assert c.does("getb", "c") == [content.hex()]
    with closing(place.open("")) as all_rows:
        base = all_rows._base
        assert base.get(b"scores:c") == base.get(b"scores:python")


def test_steps_that_rows_do_not_allow_are_refused(c: Driver, kv: KeyValues) -> None:
    assert c.ask("get", "a") == (MISSING, ["'scores:a' is not in the base"])
    assert c.ask("update", "a", "1") == (MISSING, ["'scores:a' is not in the base"])
    assert c.status("updateb", "a", "00") == MISSING
    assert c.status("delete", "a") == MISSING
    assert c.status("cas", "a", "1", "2") == CHANGED
    c.does("insert", "a", "1")
    assert c.ask("insert", "a", "2") == (EXISTS, ["'scores:a' is in the base already"])
    assert c.status("insertb", "a", "00") == EXISTS
    c.does("update", "a", "3")
    c.does("cas", "a", "3", " [4] ")
    assert c.status("cas", "a", "3", "5") == CHANGED
    assert kv["a"] == [4]
    c.does("insertb", "b", b"x".hex())
    c.does("casb", "b", b"x".hex(), b"[1]".hex())
    assert kv["b"] == b"[1]"
    assert kv.compare_and_set("b", b"[1]", 1)
    c.does("updateb", "b", b"y".hex())
    assert kv["b"] == b"y"


def test_values_of_another_type_are_refused(c: Driver, kv: KeyValues) -> None:
    kv.put("bytes", b"x")
    kv.put("pickle", {1, 2})
    kv.put("json", {"a": 1})
    assert c.ask("get", "bytes") == (
        WRONG, ["'scores:bytes' is bytes, and no JSON: use ciel_kv_get_bytes"]
    )  # fmt: skip
    assert c.ask("getb", "json") == (WRONG, ["'scores:json' is JSON: use ciel_kv_get"])
    status, (reason,) = c.ask("get", "pickle")
    assert status == WRONG
    assert "is an object of Python, as a pickle" in reason
    assert c.status("getb", "pickle") == WRONG
    assert c.status("increment", "json", "1") == WRONG
    kv.put("n", 2**63 - 1)
    assert c.status("increment", "n", "1") == WRONG
    assert c.does("increment", "n", str(-(2**63))) == ["-1"]
    assert c.does("many", "bytes", "pickle", "none", "json") == [
        "bytes=bytes:78", "pickle=pickle:", "none=nothing:", 'json=json:{"a":1}'
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "hello", "{", "[1,]", "01", "1.", "+1", "nul", '"\\x"', '"\\ud800"', "1e999",
             "'a'", "1 2", '{"a" 1}', "[" * 1100 + "]" * 1100, '{1: 2}', '"a\x01"'],
)  # fmt: skip
def test_text_that_is_no_json_is_refused(c: Driver, kv: KeyValues, text: str) -> None:
    status, (reason,) = c.ask("put", "a", text)
    assert status == INVALID
    assert "a value is no JSON" in reason
    assert "a" not in kv


@pytest.mark.parametrize(
    "text", ["0", "-0.5e+10", "1e308", "0.0001e310", "true", '"\\ud83d\\ude00 \\n"', "[[], {}]",
             "[" * 1000 + "]" * 1000, "1E-999"],
)  # fmt: skip
def test_json_is_stored(c: Driver, kv: KeyValues, text: str) -> None:
    c.does("put", "a", text)
    assert not isinstance(kv["a"], bytes)
    assert c.does("get", "a") == [text.replace(" ", "") if text[0] != '"' else text]


def test_sizes_are_limited(c: Driver, kv: KeyValues) -> None:
    c.does("put", "k" * (480 - len("scores:")), "1")
    status, (reason,) = c.ask("put", "k" * 474, "1")
    assert (status, "a key has 1 to 480" in reason) == (LARGE, True)
    assert c.status("get", "k" * 1000) == LARGE
    assert c.status("many", "a", "k" * 1000) == LARGE
    assert c.status("lock", "k" * 470, "1", "0") == LARGE
    assert c.status("put", "a", "1", "-1") == INVALID
    assert c.status("put", "a", "1", "nan") == INVALID


def test_rows_end_when_their_lifetime_does(c: Driver, kv: KeyValues, place: Place) -> None:
    c.does("put", "long", "1", "1000")
    c.does("put", "short", "1", "0.05")
    c.does("insertb", "short2", "00", "0.05")
    c.does("increment", "long", "1")
    c.does("put", "fraction", "1", "98765.4321")
    assert 98_765_432 - 60_000 < place.command(b"PTTL", b"scores:fraction") <= 98_765_432
    deadline_s = time.monotonic() + 10
    while c.status("get", "short") == 0 or c.status("getb", "short2") == 0:
        assert time.monotonic() < deadline_s
    assert kv["long"] == 2


def test_an_update_keeps_the_lifetime(c: Driver, kv: KeyValues) -> None:
    c.does("put", "a", "1", "0.3")
    c.does("update", "a", "2")
    c.does("put", "b", "1", "0.3")
    c.does("put", "b", "2")
    deadline_s = time.monotonic() + 10
    while "a" in kv:
        assert time.monotonic() < deadline_s
    assert c.does("get", "b") == ["2"]


def test_many_rows_are_put_together(c: Driver, kv: KeyValues) -> None:
    c.does("bulk", "a", "[1, 2]", "b", "{}", "a", '"last"')
    assert dict(kv.scan()) == {"a": "last", "b": {}}
    assert c.status("bulk", "a", "3", "c", "no JSON") == INVALID
    assert dict(kv.scan()) == {"a": "last", "b": {}}
    assert c.does("many", "b", "x", "a") == ["b=json:{}", "x=nothing:", 'a=json:"last"']


def test_scans_have_all_rows_of_a_prefix(c: Driver, kv: KeyValues) -> None:
    c.does("bulkmany", "2500", " [7] ")
    kv.bulk_put({"user/1": 1, "user/2": b"\xc0", "user0": 3, "many*?[]": 5, "é": {3}})
    found = c.does("scan", "many/")
    assert sorted(found) == [f"many/{n:06}=json:[7]" for n in range(2500)]
    assert sorted(c.does("scan", "user/")) == ["user/1=json:1", "user/2=bytes:c0"]
    assert c.does("scan", "many*") == ["many*?[]=json:5"]
    assert c.does("scan", "é") == ["é=pickle:"]
    assert c.does("scan", "none") == []
    assert len(c.does("scan", "")) == 2505
    status, rows = c.ask("scan", "", "3")
    assert (status, len(rows)) == (77, 3)


def test_other_names_have_other_rows(start: Start, place: Place, kv: KeyValues) -> None:
    kv.put("a", 1)
    assert start(place, "other").status("get", "a") == MISSING
    assert start(place, "").does("get", "scores:a") == ["1"]
    of_job = start(place, "mine", "job1")
    of_job.does("put", "a", "[1]")
    with closing(open_kv(place.url, "mine", place.key, "own", "job1")) as mine:
        assert mine["a"] == [1]
        mine.clear()


def test_threads_share_a_connection(c: Driver, kv: KeyValues) -> None:
    assert c.does("threads") == []
    assert kv["threads"] == 100


def test_several_clients_change_a_row(start: Start, place: Place, kv: KeyValues) -> None:
    programs = [start(place) for _ in range(3)]
    for program in programs:
        program.begin("threads")
    assert [program.result()[0] for program in programs] == [0, 0, 0]
    assert kv["threads"] == 300


def test_a_forked_child_must_open_its_own(c: Driver, kv: KeyValues) -> None:
    c.does("put", "a", "1")
    assert c.status("fork") == INVALID
    assert c.does("get", "a") == ["1"]
    assert "forked" not in kv


def test_a_program_without_a_base_is_told_so(compiled: Path, tmp_path: Path) -> None:
    def refused(url: str, key_file: Path | None = None, name: str = "scores") -> tuple[int, str]:
        driver = Driver(compiled, url, key_file, name)
        printed, _ = driver.process.communicate(timeout=20)
        status, _, reason = printed.decode().strip().partition("\t")
        return int(status), reason

    wrong = tmp_path / "wrong"
    wrong.write_text("kv-123\n")
    right = tmp_path / "right"
    right.write_text(ANY_KEY.text() + "\n")
    for url, key_file, status, reason in (
        ("", None, MISSING, "CIEL_KV is not set"),
        ("lmdb:/tmp/base", None, LACKING, "`ciel up --kv ciel-kv://HOST:PORT`"),
        ("etcd://127.0.0.1:2379", None, LACKING, "an etcd cannot be opened by a program in C"),
        ("rediss://127.0.0.1", None, LACKING, "a Redis with TLS"),
        ("none:x", None, INVALID, "none:x names no base"),
        ("ciel-kv://127.0.0.1", right, INVALID, "names no base"),
        ("ciel-kv://127.0.0.1:0", right, INVALID, "names no base"),
        ("redis://u:secret@h:99999", None, INVALID, "a URL names no base"),
        ("redis://h/x", None, INVALID, "redis://h/x names no base"),
        ("ciel-kv://h:1", None, DENIED, "needs the key of its cluster: set CIEL_KV_KEY_FILE"),
        ("ciel-kv://h:1", tmp_path / "no", DENIED, "No such file or directory"),
        ("ciel-kv://h:1", wrong, DENIED, "has no key"),
    ):
        found, why = refused(url, key_file)
        assert (found, reason in why) == (status, True), why
    assert refused("redis://h", None, "a/b")[0] == INVALID


# --- locks ----------------------------------------------------------------------------------------


def test_c_and_python_share_locks(c: Driver, kv: KeyValues) -> None:
    (fence,) = c.does("lock", "table", "5", "0")
    assert c.does("held") == ["1"]
    lock = kv.lock("table", 5)
    assert not lock.acquire(timeout_s=0.05)
    waiting = threading.Thread(target=lock.acquire)
    waiting.start()
    c.does("unlock")
    waiting.join(20)
    assert lock.fence == int(fence) + 1
    status, (reason,) = c.ask("lock", "table", "5", "0.05")
    assert (status, "another client has the lock" in reason) == (TIMEOUT, True)
    c.begin("lock", "table", "5", "20")
    time.sleep(0.1)  # so that the program waits
    lock.release()
    assert c.result() == (0, [str(int(fence) + 2)])
    c.does("unlock")
    assert list(kv) == []


def test_a_waiting_program_is_told_that_a_lock_is_free(c: Driver, kv: KeyValues) -> None:
    took_s = []
    for _ in range(3):
        with kv.lock("table", 60):
            c.begin("lock", "table", "60", "20")
            time.sleep(0.1)  # so that the program waits
            released_s = time.monotonic()
        assert c.result()[0] == 0
        took_s.append(time.monotonic() - released_s)
        c.does("unlock")
    assert min(took_s) < WAKE_S / 2  # otherwise it would poll once in WAKE_S


def test_a_lock_is_renewed(c: Driver, kv: KeyValues) -> None:
    c.does("lock", "table", "0.6", "0")
    time.sleep(1.0)
    assert c.does("held") == ["1"]
    assert not kv.lock("table").acquire(timeout_s=0)
    c.does("unlock")


def test_a_lock_of_a_stopped_program_is_lost(c: Driver, kv: KeyValues) -> None:
    c.does("lock", "table", "0.3", "0")
    c.process.send_signal(signal.SIGSTOP)
    with kv.lock("table", 5):
        c.process.send_signal(signal.SIGCONT)
        deadline_s = time.monotonic() + 10
        while c.does("held") == ["1"]:
            assert time.monotonic() < deadline_s
        status, (reason,) = c.ask("unlock")
    assert (status, "held longer than its lease" in reason) == (LOST, True)


def test_a_lock_of_python_that_ends_is_free_for_c(c: Driver, kv: KeyValues) -> None:
    lock = kv.lock("table", 0.3)
    lock.acquire()
    assert lock._lease is not None
    lock._lease.stop()  # as if its process were gone
    c.does("lock", "table", "5", "10")
    with pytest.raises(LeaseLostError):
        lock.release()
    c.does("unlock")


# --- pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 100, 16 << 10, 300_001, 4 << 20])
def test_pages_are_read_as_they_were_written(c: Driver, kv: KeyValues, size: int) -> None:
    keys = [f"page/{n}" for n in range(min(150, 3 + (8 << 20) // (size + 1)))]
    c.does("pset", str(size), *keys)
    assert c.does("pget", str(size), *keys) == [f"0:{size}:0"] * len(keys)
    assert c.does("pget", str(2 * size), keys[0]) == [f"0:{size}:0"]
    c.does("pdelete", "0", *keys[1:], "page/none", keys[1])
    assert c.ask("pget", str(size), *keys) == (MISSING, ["a page is not in the base"])
    assert c.does("pget", str(size), keys[0]) == [f"0:{size}:0"]
    c.does("pdelete", "0", keys[0])
    assert c.status("pget", str(size), keys[0]) == MISSING


def test_a_page_that_is_larger_than_its_buffer_is_cut(c: Driver, kv: KeyValues) -> None:
    c.does("pset", "100000", "large", "large2")
    c.does("pset", "1000", "small")
    assert c.ask("pget", "1000", "large", "small", "large2") == (
        LARGE, ["a page is larger than its buffer"]
    )  # fmt: skip
    assert c.does("pget", "100000", "large") == ["0:100000:0"]
    c.does("pdelete", "0", "large", "large2", "small")


def test_a_commit_sets_a_raw_value(c: Driver, kv: KeyValues, place: Place) -> None:
    c.does("commit", "root", b"[1]".hex())
    with closing(place.open("")) as all_rows:
        assert all_rows["root"] == [1]
        assert all_rows.clear("root") == 1
    assert c.status("commit", "", "00") == LARGE
    assert c.status("pset", "10", "a", "k" * 481) == LARGE


# --- failures -------------------------------------------------------------------------------------


def test_each_increment_counts_once_when_a_daemon_is_killed(start: Start, tmp_path: Path) -> None:
    with KvDaemon(tmp_path / "base") as daemon:
        c = start(place_of(daemon))
        assert c.does("increment", "n", "1") == ["1"]
        daemon.kill()
        c.begin("increment", "n", "1")  # waits for the daemon
        daemon.start()
        assert c.result() == (0, ["2"])


@pytest.mark.requirement("KVB-3")
@pytest.mark.slow
def test_batches_are_carried_out_once_when_a_daemon_is_killed(start: Start, tmp_path: Path) -> None:
    keys = [f"page/{n}" for n in range(300)]
    with KvDaemon(tmp_path / "base") as daemon:
        c = start(place_of(daemon))
        for number in range(1, 7):
            c.begin("increment", "n", "1")
            daemon.kill()  # before or after it has carried out the batch
            daemon.start()
            assert c.result() == (0, [str(number)])
        c.begin("pset", "50000", *keys)
        for _ in range(3):
            daemon.kill()
            daemon.start()
        assert c.result()[0] == 0
        assert c.does("pget", "50000", *keys) == ["0:50000:0"] * 300


class LossyProxy:
    """Forwards one connection after another to a server. The first connections lose what the server
    sends from the reply number `lose_at` on, counted from 1, and then they end.
    """

    def __init__(self, place: Place, lose_at: list[int]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(POLL_S)
        where = urlsplit(place.url)
        own = int(self._listening.getsockname()[1])
        self.place = Place(
            place.url.replace(f":{where.port}", f":{own}"), place.key, place.key_file
        )
        self._target = where.port
        self._lose_at = lose_at
        self._is_closing = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> LossyProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        self._thread.join()
        self._listening.close()

    def _run(self) -> None:
        while not self._is_closing:
            with suppress(TimeoutError):
                client, _ = self._listening.accept()
                with client, socket.create_connection(("127.0.0.1", self._target or 0)) as server:
                    self._forward(client, server, self._lose_at.pop(0) if self._lose_at else 0)

    def _forward(self, client: socket.socket, server: socket.socket, lose_at: int) -> None:
        """Forward until one side closes, or what is lost ends."""
        is_losing = False
        while not self._is_closing:
            ready, _, _ = select.select([client, server], [], [], POLL_S)
            if is_losing and not ready:
                return
            for side in ready:
                data = side.recv(1 << 20)
                lose_at -= side is server
                is_losing |= side is server and lose_at == 0
                if not data:
                    return
                if side is client:
                    server.sendall(data)
                elif not is_losing:
                    client.sendall(data)


@pytest.mark.requirement("KVB-3")
@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_a_batch_whose_reply_is_lost_is_carried_out_once(
    start: Start, place: Place, kv: KeyValues, lost: int
) -> None:
    with LossyProxy(place, [lost, lost + 1]) as proxy:
        c = start(proxy.place)
        assert c.does("increment", "n", "1") == ["1"]
        assert c.does("increment", "n", "1") == ["2"]
        c.does("insert", "a", "1")
        c.does("delete", "a")
    assert kv["n"] == 2


def test_batches_of_pages_whose_replies_are_lost_are_carried_out_once(
    start: Start, place: Place, kv: KeyValues
) -> None:
    keys = [f"page/{n}" for n in range(24)]
    with LossyProxy(place, [4, 3]) as proxy:  # when the first of several batches is carried out
        c = start(proxy.place)
        c.does("pset", "1000000", *keys)
        assert c.does("pget", "1000000", *keys) == ["0:1000000:0"] * len(keys)
        c.does("pdelete", "0", *keys)


def test_a_base_that_is_gone_is_unreachable(start: Start, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(Key.new().text())
    c = start(Place(f"ciel-kv://127.0.0.1:{free_port()}", ANY_KEY, key_file))
    c.does("timeout", "0.1")
    for words in (["get", "a"], ["put", "a", "1"], ["scan", ""], ["pget", "1", "a"],
                  ["pset", "1", "a"], ["pdelete", "0", "a"], ["lock", "a", "1", "1"]):  # fmt: skip
        status, (reason,) = c.ask(*words)
        assert status == UNREACHABLE
        assert "does not answer: Connection refused" in reason


def test_another_key_is_refused(start: Start, tmp_path: Path) -> None:
    with KvDaemon(tmp_path / "base") as daemon:
        other = tmp_path / "other"
        other.write_text(Key.new().text())
        place = place_of(daemon)
        status, (reason,) = start(Place(place.url, ANY_KEY, other)).ask("get", "a")
        assert (status, "does not have the key of this cluster" in reason) == (DENIED, True)
        other.write_text(Key(b"k" * 32, Role.MEMORY).text())
        status, (reason,) = start(Place(place.url, ANY_KEY, other)).ask("get", "a")
        assert (status, "has no access to state" in reason) == (DENIED, True)


@pytest.mark.skipif(REDIS is None, reason="redis-server is not installed")
def test_a_wrong_password_of_redis_is_refused(start: Start, tmp_path: Path) -> None:
    with redis_server(tmp_path, "--requirepass", "right") as port:
        for login in ("", ":wrong@", "someone:right@"):
            c = start(Place(f"redis://{login}127.0.0.1:{port}", ANY_KEY, None))
            assert c.status("get", "a") == DENIED
            assert c.status("put", "a", "1") == DENIED
        c = start(Place(f"redis://:right@127.0.0.1:{port}/99", ANY_KEY, None))
        assert "out of range" in c.ask("get", "a")[1][0]


@pytest.mark.skipif(REDIS is None, reason="redis-server is not installed")
def test_a_full_redis_refuses_writes(start: Start, tmp_path: Path) -> None:
    with redis_server(tmp_path, "--maxmemory", "1") as port:
        c = start(Place(f"redis://127.0.0.1:{port}", ANY_KEY, None))
        for words in (["put", "a", "1"], ["pset", "1", "a"], ["lock", "a", "1", "1"]):
            status, (reason,) = c.ask(*words)
            assert (status, "OOM" in reason) == (FULL, True)
        assert c.status("get", "a") == MISSING


def test_a_hash_of_redis_is_no_value(start: Start, place: Place, kv: KeyValues) -> None:
    place.command(b"HSET", b"scores:hash", b"a", b"b")
    c = start(place)
    assert c.status("get", "hash") == WRONG
    assert c.does("many", "hash") == ["hash=nothing:"]
    if place.key_file is not None:  # a batch for Redis takes it for missing, as in Python
        assert c.status("insert", "hash", "1") == WRONG
    c.does("put", "hash", "1")
    assert kv["hash"] == 1


# --- tasks ----------------------------------------------------------------------------------------

TASK: Final = r"""
#include <ciel_kv.h>
#include <stdio.h>

int main(void)
{
    struct ciel_kv *kv = ciel_kv_open("words"), *own = ciel_kv_open_of_job("words", NULL);
    int64_t sum;
    if (!kv || !own || ciel_kv_increment(kv, "tasks", 1, &sum) || ciel_kv_put(own, "a", "1", 0)) {
        fprintf(stderr, "%s\n", ciel_kv_why());
        return 1;
    }
    printf("%lld\n", (long long)sum);
    ciel_kv_close(own);
    ciel_kv_close(kv);
    return 0;
}
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not is_there("cc"):
        pytest.skip("a C compiler is missing")
    directory = tmp_path_factory.mktemp("task")
    (directory / "task.c").write_text(TASK)
    command = ["cc", "-o", "task", f"-I{SDK}", "task.c", str(SDK / "ciel_kv.c"), "-pthread"]
    subprocess.run(command, cwd=directory, check=True)
    return directory / "task"


def test_a_task_in_c_uses_the_base_of_its_cluster(task: Path, tmp_path: Path) -> None:
    key = Key.new()
    (tmp_path / "base").mkdir()
    own = key.derive(Role.KV)
    assert own is not None
    (tmp_path / "base" / "password").write_text(own.text())
    with KvDaemon(tmp_path / "base", "--sync", "off") as daemon:
        url = f"ciel-kv://127.0.0.1:{daemon.port}"
        with (
            ciel.LocalCluster(slots=1, identity=("own", key), switches=["--kv", url]) as cluster,
            ciel.Client(cluster) as client,
        ):
            assert client.submit(lambda: ciel.kv("words").increment("tasks")).result(30) == 1
            assert client.run([str(task)]).result(30) == b"2\n"
            assert client.run([str(task), "again"]).result(30) == b"3\n"
            with client.kv("words") as kv, client.kv("") as everything:
                assert kv["tasks"] == 3
                of_jobs = [key for key in everything if key.startswith("@own/")]
            assert of_jobs
            assert all(key.endswith("/words:a") for key in of_jobs)


def test_a_task_in_c_is_told_that_it_cannot_open_lmdb(task: Path) -> None:
    with (
        ciel.LocalCluster(slots=1, kv=True) as cluster,
        ciel.Client(cluster) as client,
        pytest.raises(ciel.TaskError, match="--kv ciel-kv://HOST:PORT"),
    ):
        client.run([str(task)]).result(30)
