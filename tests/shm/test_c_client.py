"""Programs in C use a block store by libshmdc, with real daemons and with wrong ones (CIB-10)."""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from ciel.shm.client import ShmdClient
from ciel.shm.errors import MessageError, RequestFailedError
from ciel.shm.messages import (
    FRAME_MAX_BYTES,
    TIMEOUT_MAX_MS,
    Abandon,
    Code,
    Commit,
    Fail,
    Load,
    Message,
    Ok,
    Write,
    decode,
    encode,
)
from ciel.storage.digests import digest_of
from ciel.storage.segments import SEGMENT_MIN_BYTES
from ciel.storage.shelf import NAMED_BIT
from ciel.testing.homes import BIN, wait_for
from ciel_tests.clusters.block_stores import BlockStores
from ciel_tests.clusters.puppet_daemon import Puppet

ROOT: Final = Path(__file__).parents[2]
SDK: Final = ROOT / "executors" / "sdk"
CONTENT: Final = bytes(range(256)) * 300
NOT_FOUND, INVALID, GONE, DENIED = 1, 100, 101, 102  # as shmdc.h has them
FLAGS: Final = (
    "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror",
    "-D_GNU_SOURCE", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-pthread",
)  # fmt: skip

# Carries out one request a line, with fields separated by tabs; prints the status and the reply. It
# contains the library, so that it can read frames without a connection.
DRIVER: Final = r"""
#include <shmdc.c>

enum { WORDS = 8, THREADS = 4, ROUNDS = 25 };

static struct shmdc *store;
static struct shmdc_reply reply;
static char *words[WORDS];

static int is(const char *verb) { return strcmp(words[0], verb) == 0; }

static void print_hex(const unsigned char *bytes, size_t size)
{
    printf("\t");
    for (size_t i = 0; i < size; i++)
        printf("%02x", bytes[i]);
}

/* Read a frame's body, given in hexadecimal digits. */
static void print_answer(const char *digits)
{
    size_t size = strlen(digits) / 2;
    unsigned char *body = malloc(size + (size == 0));
    struct answer answer;

    for (size_t i = 0; i < size; i++) {
        unsigned byte;
        sscanf(digits + 2 * i, "%2x", &byte);
        body[i] = (unsigned char)byte;
    }
    const char *problem = decode(body, size, &answer);
    if (problem != NULL) {
        printf("%s", problem);
    } else {
        printf("%d\t%llu\t%llu", answer.kind, (unsigned long long)answer.number,
               (unsigned long long)answer.value);
        print_hex(answer.texts[0].bytes, answer.texts[0].size);
        print_hex(answer.texts[1].bytes, answer.texts[1].size);
    }
    free(body);
}

static int read_object(void)
{
    char content[4096];
    ssize_t got, size = 0;
    int fd, status = shmdc_read(store, words[1], 0, &fd, &reply);

    if (status != 0)
        return fd == -1 ? status : -9;
    while ((got = read(fd, content, sizeof content)) > 0)
        size += got;
    close(fd);
    return (uint64_t)size == reply.size_bytes ? 0 : -9;
}

static void *load_often(void *name)
{
    struct shmdc_reply own;
    for (int i = 0; i < ROUNDS; i++)
        if (shmdc_load(store, name, 0, &own) != 0 || strstr(own.path, name) == NULL)
            return name;
    return NULL;
}

/* Let threads share the connection; each loads an object of its own: words 1 to 4. */
static int run_threads(void)
{
    pthread_t threads[THREADS];
    int wrong = 0;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, load_often, words[i + 1]);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong += result != NULL;
    }
    return wrong;
}

static int carry_out(void)
{
    int number = words[2] != NULL ? atoi(words[2]) : 0;

    memset(&reply, 'x', sizeof reply);
    clear(&reply);
    if (is("load"))
        return shmdc_load(store, words[1], number, &reply);
    if (is("read"))
        return read_object();
    if (is("info"))
        return shmdc_info(store, words[1], &reply);
    if (is("write"))
        return shmdc_write(store, words[1], strtoull(words[2], NULL, 10), atoi(words[3]), &reply);
    if (is("commit"))
        return shmdc_commit(store, words[1], words[2], &reply);
    if (is("abandon"))
        return shmdc_abandon(store, words[1], &reply);
    if (is("threads"))
        return run_threads();
    shmdc_set_timeout(store, (uint32_t)atoi(words[1]));
    return 0;
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t room = 0;

    store = shmdc_open(argc > 1 ? argv[1] : NULL, argc > 2 ? argv[2] : NULL);
    if (store == NULL)
        return errno == ENOENT ? 3 : 4;
    while (getline(&line, &room, stdin) > 0) {
        int count = 0;

        line[strcspn(line, "\n")] = '\0';
        memset(words, 0, sizeof words);
        for (char *rest = line; count < WORDS && (words[count] = strsep(&rest, "\t")) != NULL;)
            count++;
        if (is("answer")) {
            print_answer(words[1]);
        } else {
            int status = carry_out();
            printf("%d\t%llu\t%s\t%s\t%s", status, (unsigned long long)reply.size_bytes,
                   reply.path, reply.checksum, reply.reason);
        }
        printf("\n");
        fflush(stdout);
    }
    free(line);
    shmdc_close(store);
    return 0;
}
"""


class Reply(NamedTuple):
    """The status and the reply of a function of the library."""

    status: int
    size_bytes: int
    path: str
    checksum: str
    reason: str


class Program:
    """The driver, connected to the store in a directory."""

    def __init__(self, driver: Path, *arguments: str, **options: object) -> None:
        self.process = subprocess.Popen(
            [str(driver), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            encoding="utf-8", errors="surrogateescape", **options,  # type: ignore[call-overload] # any
        )  # fmt: skip

    def say(self, *words: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return str(self.process.stdout.readline()).removesuffix("\n")

    def ask(self, *words: object) -> Reply:
        status, size_bytes, *texts = self.say(*words).split("\t")
        return Reply(int(status), int(size_bytes), *texts)

    def end(self) -> None:
        with suppress(BrokenPipeError):
            _, said = self.process.communicate(timeout=20)
        assert (self.process.returncode, said) == (0, "")


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shmdc")
    (directory / "driver.c").write_text(DRIVER)
    command = ["cc", *FLAGS, f"-I{SDK / 'c'}", "-o", "driver", "driver.c"]
    subprocess.run(command, check=True, cwd=directory)
    return directory / "driver"


@pytest.fixture
def program(driver: Path, pair: BlockStores) -> Iterator[Program]:
    program = Program(driver, str(pair.path / "a"))
    yield program
    program.end()


def put(program: Program, name: str, content: bytes) -> str:
    """Write and commit an object by the library; return its path."""
    opened = program.ask("write", name, len(content), 0)
    assert opened.status == 0, opened.reason
    Path(opened.path).write_bytes(content)
    done = program.ask("commit", opened.path, name)
    assert done.status == 0, done.reason
    return done.path


# --- the operations, with a real daemon -----------------------------------------------------------


@pytest.mark.requirement("CIB-10")
def test_it_finds_the_objects_that_python_finds(pair: BlockStores, program: Program) -> None:
    python = pair.client("a")
    made = pair.make(python, "c:by-python", CONTENT)
    pair.put("a", "c:on-disk", CONTENT)
    assert program.ask("load", "c:by-python").path == made
    assert program.ask("load", "c:on-disk").path == python.load("c:on-disk")
    path = put(program, "c:by-c", CONTENT)
    assert python.load("c:by-c") == path
    assert Path(path).read_bytes() == CONTENT
    found = program.ask("read", "c:by-c")
    assert (found.status, found.size_bytes, found.path) == (0, len(CONTENT), path)
    info = program.ask("info", "c:by-c")
    with open(path, "rb") as file:
        assert info == Reply(0, len(CONTENT), "", digest_of(file.fileno()), "")


@pytest.mark.requirement("CIB-10")
@pytest.mark.parametrize("name", ["c:missing", "../escape", "/etc/passwd", "", "x" * 200])
def test_it_fails_as_python_fails(pair: BlockStores, program: Program, name: str) -> None:
    put(program, "c:known", CONTENT)  # so that it knows the directory of the objects
    with pytest.raises(RequestFailedError) as failed:
        pair.client("a").load(name, recursive=False)
    for reply in (program.ask("load", name, 1), program.ask("info", name)):
        assert reply == Reply(failed.value.code, 0, "", "", f"{name}: {failed.value.reason}")


def test_an_object_of_another_store_comes_unless_that_is_excluded(
    pair: BlockStores, program: Program
) -> None:
    pair.make(pair.client("b"), "c:at-b", CONTENT)
    assert program.ask("load", "c:at-b", 1).status == NOT_FOUND
    assert Path(program.ask("load", "c:at-b").path).read_bytes() == CONTENT


@pytest.mark.requirement("CIB-11")
def test_an_attempt_has_one_file_in_both_languages(driver: Path, pair: BlockStores) -> None:
    first, second, other = (
        Program(driver, str(pair.path / "a"), attempt) for attempt in ("c.1", "c.1", "c.2")
    )
    path = first.ask("write", "c:shared", 0, 0).path
    assert first.ask("write", "c:shared", 0, 0).path == path
    assert second.ask("write", "c:shared", 0, 0).path == path
    assert other.ask("write", "c:shared", 0, 0).path != path
    assert pair.client("a", attempt="c.1").write("c:shared") == path
    first.end()
    Path(path).write_bytes(CONTENT)
    assert Path(second.ask("commit", path, "c:shared").path).read_bytes() == CONTENT
    second.end()
    other.end()


@pytest.mark.requirement("CIB-10")
def test_what_is_abandoned_is_discarded_in_both_languages(
    pair: BlockStores, program: Program
) -> None:
    path = program.ask("write", "c:given-up", 0, 0).path
    assert program.ask("abandon", path).status == 0
    wait_for(lambda: not Path(path).exists(), "the end of the file")
    assert program.ask("commit", path, "c:given-up").status == Code.UNKNOWN_PATH
    python = pair.client("a")
    other = python.write("c:given-up")
    assert program.ask("abandon", other).status == Code.UNKNOWN_PATH
    python.abandon(other)
    wait_for(lambda: not Path(other).exists(), "the end of the file")


def test_an_unfinished_file_goes_with_its_program(driver: Path, pair: BlockStores) -> None:
    program = Program(driver, str(pair.path / "a"))
    path = Path(program.ask("write", "c:killed", 0, 2).path)
    assert path.exists()
    program.process.kill()
    program.process.communicate(timeout=20)
    wait_for(lambda: not path.exists(), "the end of the file")


def test_a_conflict_and_a_full_store_have_their_statuses(program: Program) -> None:
    put(program, "c:twice", b"one" * 2000)
    path = program.ask("write", "c:twice", 0, 0).path
    Path(path).write_bytes(b"two" * 2000)
    assert program.ask("commit", path, "c:twice").status == Code.CONFLICT
    full = program.ask("write", "c:large", 2**40, 0)
    assert full.status == Code.NO_SPACE
    assert "wanted 1099511627776 bytes" in full.reason


def test_threads_share_a_connection(program: Program) -> None:
    names = [f"c-thread{number}" for number in range(4)]
    for name in names[:2]:  # only the daemon could find the last two
        put(program, name, CONTENT)
    assert program.ask("threads", *names[:2] * 2).status == 0
    assert program.ask("threads", *names).status == 2


def test_each_thread_gets_its_own_answers(driver: Path, puppet: Puppet) -> None:
    puppet.script = lambda message: encode(
        Ok(message.number, f"/{message.name}" if isinstance(message, Load) else "")
    )
    program = Program(driver, str(puppet.directory))
    assert program.ask("threads", *(f"n{number}" for number in range(4))).status == 0
    assert [message.number for message in puppet.heard] == list(range(1, 101))
    program.end()


def test_an_argument_that_no_frame_can_hold_is_refused(program: Program) -> None:
    assert program.ask("load", "x" * 300) == Reply(
        INVALID, 0, "", "", "a name is missing, or has more than 256 bytes"
    )
    assert program.ask("load", "x", 8).status == INVALID
    assert program.ask("commit", "/" + "p" * 5000, "x").status == INVALID
    assert program.ask("abandon", "/" + "p" * 5000).status == INVALID


def test_a_task_names_its_store_and_its_attempt_by_its_environment(
    driver: Path, pair: BlockStores
) -> None:
    environ = {"CIEL_SHMD": str(pair.path / "a"), "CIEL_TASK": "c-task", "CIEL_ATTEMPT": "7"}
    program = Program(driver, env=environ)
    path = program.ask("write", "c:task", 0, 0).path
    assert pair.client("a", attempt="c-task.7").write("c:task") == path
    program.end()
    assert subprocess.run([driver], env={}, stdin=subprocess.DEVNULL).returncode == 3


# --- objects that are found without the daemon ----------------------------------------------------


@pytest.mark.requirement("CIB-10")
def test_an_object_in_memory_needs_no_request(driver: Path, stores: BlockStores) -> None:
    stores.start("a")
    program = Program(driver, str(stores.path / "a"))
    paths = {name: put(program, name, CONTENT) for name in ("c:one", "two")}
    stores.stop("a")  # it answers nothing any more
    program.ask("timeout", 200)
    for name, path in paths.items():
        assert program.ask("load", name) == Reply(0, len(CONTENT), path, "", "")
        assert program.ask("read", name).status == 0
    late = program.ask("load", "c:other")
    assert late.status == Code.TIMEOUT
    assert "has not completed the request within 200 ms" in late.reason
    stores.daemons["a"].send_signal(signal.SIGCONT)
    program.ask("timeout", 20_000)
    assert program.ask("load", "c:other").status == NOT_FOUND
    program.end()


def test_only_marked_files_are_opened_without_the_daemon(
    pair: BlockStores, program: Program
) -> None:
    """The store reuses the memory of large files whose path no program has got."""
    put(program, "c:small", CONTENT)
    python = pair.client("a")
    path = python.write("c:large", is_mapped=True)
    with open(path, "r+b") as file:
        file.truncate(SEGMENT_MIN_BYTES)
    Path(python.commit(path, "c:large")).chmod(0o400)  # as if no path had been given
    large = program.ask("load", "c:large").path
    assert os.stat(large).st_mode & NAMED_BIT
    for mode in (0o600, 0o400):  # a file that may change is not an object
        os.chmod(large, mode)
        assert program.ask("load", "c:large").path == large
        assert os.stat(large).st_mode & NAMED_BIT


@pytest.mark.requirement("CIB-10")
@pytest.mark.parametrize(
    "name, needs_request",
    [
        ("plain", False),
        ("with:colon", False),
        ("marked", False),
        ("unmarked", True),
        ("writable", True),
        ("link", True),
        ("directory", True),
        (".hidden", True),
        ("../outside", True),
        ("directory/inside", True),
        ("missing", True),
    ],
)
def test_only_objects_are_opened_without_a_request(
    driver: Path, puppet: Puppet, name: str, needs_request: bool
) -> None:
    objects = puppet.directory / "objects"
    (objects / "directory").mkdir(parents=True)
    modes = {"marked": 0o1400, "writable": 0o1600}
    files = (
        "known", "plain", "with+colon", "marked", "unmarked", "writable", ".hidden", "../outside",
        "directory/inside",
    )  # fmt: skip
    for file in files:
        large = SEGMENT_MIN_BYTES if file.endswith("marked") else 5
        (objects / file).write_bytes(bytes(large))
        (objects / file).chmod(modes.get(file, 0o400))
    (objects / "link").symlink_to("plain")
    puppet.script = lambda message: encode(Ok(message.number, str(objects / "known")))
    program = Program(driver, str(puppet.directory))
    assert program.ask("load", "known").status == 0
    for verb in ("load", "read"):
        puppet.heard.clear()
        reply = program.ask(verb, name)
        assert bool(puppet.heard) is needs_request
        asked, found = str(objects / "known"), str(objects / name.replace(":", "+"))
        assert reply.path == (asked if needs_request else found)
    program.end()


def test_the_directory_of_another_file_is_not_taken_for_that_of_the_objects(
    driver: Path, puppet: Puppet
) -> None:
    """A worker may give the path of a copy, such as `/proc/1/fd/7`."""
    for file in ("7", "plain"):
        (puppet.directory / file).write_bytes(b"")
        (puppet.directory / file).chmod(0o400)
    puppet.script = lambda message: encode(Ok(message.number, str(puppet.directory / "7")))
    program = Program(driver, str(puppet.directory))
    for name in ("known", "plain"):
        assert program.ask("load", name).path == str(puppet.directory / "7")
    assert len(puppet.heard) == 2
    program.end()


def test_a_deleted_object_and_a_new_daemon_are_noticed(driver: Path, stores: BlockStores) -> None:
    stores.start("a")
    program = Program(driver, str(stores.path / "a"))
    path = put(program, "c:one", CONTENT)
    os.unlink(path)
    assert program.ask("load", "c:one").status == NOT_FOUND
    put(program, "c:one", CONTENT)
    stores.kill("a")
    assert program.ask("load", "c:one").status == GONE  # though its file is still there
    stores.start("a")
    assert program.ask("load", "c:one").status == NOT_FOUND
    assert Path(put(program, "c:one", b"new")).read_bytes() == b"new"
    program.end()


def test_an_object_that_is_gone_before_it_is_open_is_loaded_once_more(
    driver: Path, puppet: Puppet
) -> None:
    (puppet.directory / "x").write_bytes(CONTENT)
    answers = ["/none/x", str(puppet.directory / "x")]
    puppet.script = lambda message: encode(Ok(message.number, answers.pop(0), len(CONTENT)))
    program = Program(driver, str(puppet.directory))
    assert program.ask("read", "x").status == 0
    answers[:] = ["/none/y"] * 2
    gone = program.ask("read", "y")
    assert (gone.status, gone.path) == (Code.FAILED, "")
    assert gone.reason == "y: its file cannot be opened: No such file or directory"
    program.end()


# --- no daemon, a slow one, one of another user ---------------------------------------------------


@pytest.mark.requirement("CIB-10")
def test_where_no_daemon_is_that_is_said_at_once(driver: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("missing", "file", "."):
        program = Program(driver, str(tmp_path / name))
        reply = program.ask("load", "x")
        assert reply.status == GONE
        assert reply.reason.startswith(f"no daemon serves the block store {tmp_path / name}")
        program.end()


def test_a_daemon_that_ends_is_asked_once_more_but_not_to_commit(
    driver: Path, puppet: Puppet
) -> None:
    program = Program(driver, str(puppet.directory))
    puppet.script = lambda message: None
    for words, count in ((("load", "x"), 2), (("write", "x", 0, 0), 2), (("commit", "/p", "x"), 1)):
        puppet.heard.clear()
        reply = program.ask(*words)
        assert (reply.status, len(puppet.heard)) == (GONE, count)
        assert "it ended the connection before it answered" in reply.reason
    puppet.script = lambda message: encode(Ok(message.number, "/p"))
    assert program.ask("load", "x").path == "/p"
    program.end()


def test_a_daemon_that_is_silent_is_given_up_and_a_late_answer_is_not_taken(
    driver: Path, puppet: Puppet
) -> None:
    program = Program(driver, str(puppet.directory))
    program.ask("timeout", 50)
    puppet.script = lambda message: encode(Ok(message.number, "/whole"))[:9]
    assert program.ask("load", "x").status == Code.TIMEOUT
    (heard,) = puppet.heard
    assert heard == Load(1, "x", recursive=True, timeout_ms=50)
    program.ask("timeout", 20_000)
    puppet.script = lambda message: b"".join(
        encode(Ok(message.number + number, f"/{number}")) for number in (5, -1, 0)
    )
    assert program.ask("load", "x").path == "/0"
    program.end()


def test_the_requests_are_those_of_python(driver: Path, puppet: Puppet) -> None:
    program = Program(driver, str(puppet.directory), "att")
    program.ask("timeout", 10**9)
    puppet.script = lambda message: encode(Ok(message.number, "/p"))
    for words in (
        ("load", "a", 1), ("load", "a", 0), ("info", "a"), ("write", "a", 2**60, 2),
        ("commit", "/p", "b"), ("abandon", "/q"),
    ):  # fmt: skip
        assert program.ask(*words).status == 0
    assert puppet.heard == [
        Load(1, "a", recursive=False, timeout_ms=TIMEOUT_MAX_MS),
        Load(2, "a", timeout_ms=TIMEOUT_MAX_MS),
        Load(3, "a", recursive=False, described=True, timeout_ms=TIMEOUT_MAX_MS),
        Write(4, "a", "att", 2**60, TIMEOUT_MAX_MS, is_mapped=True),
        Commit(5, "/p", "b", TIMEOUT_MAX_MS),
        Abandon(6, "/q", TIMEOUT_MAX_MS),
    ]
    program.end()


@pytest.mark.requirement("CIB-10")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_gets_nothing(driver: Path, pair: BlockStores) -> None:
    made = pair.make(pair.client("a"), "c:private", CONTENT)
    public = Path("/dev/shm", f"ciel-test-{os.getpid()}")  # nobody may not enter the test's own
    public.write_bytes(driver.read_bytes())
    public.chmod(0o755)
    directory_fd = os.open(pair.path / "a", os.O_PATH)
    try:
        # By the descriptor only `shmd`, which has the mode 0700, can keep this user out.
        program = Program(
            public, f"/proc/self/fd/{directory_fd}", user=65534, group=65534, extra_groups=[],
            pass_fds=[directory_fd],
        )  # fmt: skip
        assert program.ask("load", "c:private").status == DENIED
        program.end()
    finally:
        os.close(directory_fd)
        public.unlink()
    assert Path(made).read_bytes() == CONTENT


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_daemon_of_another_user_is_not_asked(driver: Path, tmp_path: Path) -> None:
    (tmp_path / "shmd").mkdir()
    listen = "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1])"
    serve = "os.setuid(65534); s.listen(); print(flush=True); print(s.accept()[0].recv(9))"
    with subprocess.Popen(
        [sys.executable, "-c", f"{listen}; {serve}", tmp_path / "shmd" / "socket"],
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        program = Program(driver, str(tmp_path))
        assert program.ask("load", "x").status == DENIED
        program.end()
        assert other.stdout.readline() == b"b''\n"  # it was sent nothing


# --- hostile bytes --------------------------------------------------------------------------------

ANSWERS: Final = (
    Ok(7, "/dev/shm/ciel-1/objects/a", 4096, "99fc819aaba2462a"),
    Ok(2**64 - 1, "", 2**64 - 1, ""),
    Ok(0, "/" + "p" * 4094, 1, "c" * 256),
    Fail(8, Code.BUSY, "a:out:0", "later"),
    Fail(9, Code.FAILED, "/" + "p" * 4094, "r" * 1024),
    Load(1, "a", timeout_ms=9),
)


def mutated(raw: bytes, chance: random.Random) -> bytes:
    """Change, cut or extend a frame's body at random."""
    body = bytearray(raw)
    for _ in range(chance.randrange(4)):
        match chance.randrange(4):
            case 0 if body:
                body[chance.randrange(min(len(body), 60))] = chance.randrange(256)
            case 1:
                del body[chance.randrange(len(body) + 1) :]
            case 2:
                body += chance.randbytes(chance.randrange(9))
            case 3:
                at = chance.randrange(len(body) + 1)
                body[at:at] = chance.choice([b"\0", b"\xff\xff", b"\0\5", chance.randbytes(3)])
    return bytes(body)


def described(body: bytes) -> str | None:
    """Return an answer as the driver prints it; None if Python's decoder finds none."""
    try:
        message: Message = decode(body)
    except MessageError:
        return None
    match message:
        case Ok(number, path, size_bytes, checksum):
            fields, texts = ("4", number, size_bytes), (path, checksum)
        case Fail(number, code, subject, reason):
            fields, texts = ("5", number, int(code)), (subject, reason)
        case _:
            return None
    return "\t".join([*map(str, fields), *(os.fsencode(text).hex() for text in texts)])


@pytest.mark.requirement("CIB-10")
def test_it_reads_any_bytes_as_python_does(driver: Path, tmp_path: Path) -> None:
    chance = random.Random(os.environ.get("CIEL_SEED", "shmdc"))
    program = Program(driver, str(tmp_path))
    accepted = refused = 0
    for number in range(60_000 if os.environ.get("CIEL_LONG") else 4_000):
        body = mutated(encode(ANSWERS[number % len(ANSWERS)])[4:], chance)
        printed, expected = program.say("answer", body.hex()), described(body)
        if expected is None:
            assert "\t" not in printed, body.hex()
            refused += 1
        else:
            assert printed == expected, body.hex()
            accepted += 1
    program.end()
    assert accepted > 500
    assert refused > 500


def test_any_stream_of_bytes_ends_in_a_status(driver: Path, puppet: Puppet) -> None:
    chance = random.Random(os.environ.get("CIEL_SEED", "shmdc"))
    program = Program(driver, str(puppet.directory))
    program.ask("timeout", 1)
    statuses = set()
    for number in range(2_000 if os.environ.get("CIEL_LONG") else 80):
        answer = ANSWERS[number % 2 * 3]
        late = encode(Ok(99, "/late")) * chance.randrange(2)
        length = chance.choice([None, FRAME_MAX_BYTES + 1, 2**32 - 1, 0])

        def script(
            message: Message,
            answer: Message = answer,
            late: bytes = late,
            length: int | None = length,
        ) -> bytes:
            own = Ok(message.number, "/p") if isinstance(answer, Ok) else answer
            body = mutated(encode(own)[4:], chance)
            return late + (len(body) if length is None else length).to_bytes(4, "big") + body

        puppet.script = script
        statuses.add(program.ask("load", "x").status)
    puppet.script = lambda message: encode(Ok(message.number, "/p"))
    program.ask("timeout", 20_000)
    assert program.ask("load", "x").path == "/p"
    program.end()
    assert statuses == {0, Code.TIMEOUT, GONE}


# --- the library as users get it ------------------------------------------------------------------


@pytest.mark.requirement("CIB-10")
def test_the_library_can_be_loaded_and_exports_only_its_functions(pair: BlockStores) -> None:
    path = SDK / "lib" / "libshmdc.so"
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", path], check=True, capture_output=True, text=True
    ).stdout.split("\n")
    header = (SDK / "c" / "shmdc.h").read_text()
    public = set(re.findall(r"\b(shmdc_\w+)\(struct shmdc|\b(shmdc_open)\(const", header))
    assert {line.split()[-1] for line in listed if line} == {one or other for one, other in public}
    library = ctypes.CDLL(str(path))
    library.shmdc_open.restype = ctypes.c_void_p
    store = ctypes.c_void_p(library.shmdc_open(os.fsencode(pair.path / "a"), None))
    reply = ctypes.create_string_buffer(16 << 10)
    assert library.shmdc_load(store, b"c:nowhere", 0, reply) == NOT_FOUND
    library.shmdc_close(store)


def test_a_program_is_built_by_pkg_config(pair: BlockStores, tmp_path: Path) -> None:
    pair.make(pair.client("a"), "c:built", CONTENT)
    source = r"""
        #include <shmdc.h>
        #include <stdio.h>
        int main(int argc, char **argv)
        {
            struct shmdc_reply reply;
            struct shmdc *store = shmdc_open(argv[argc - 1], NULL);
            if (store && shmdc_load(store, "c:built", 0, &reply) == 0)
                puts(reply.path);
            shmdc_close(store);
        }
    """
    (tmp_path / "program.c").write_text(source)
    found = [sys.executable, "-m", "ciel.executors.sdk"]
    sdk = subprocess.run(found, check=True, capture_output=True, text=True).stdout.strip()
    environ = os.environ | {"PKG_CONFIG_PATH": f"{sdk}/lib/pkgconfig"}
    build = "cc -std=c11 -Wall -Werror -o program program.c $(pkg-config --cflags --libs shmdc)"
    subprocess.run(["sh", "-c", build], check=True, cwd=tmp_path, env=environ)
    command = [tmp_path / "program", pair.path / "a"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == pair.client("a").load("c:built")


def shmdc(*words: str | Path, text: bytes = b"") -> tuple[int, bytes, str]:
    """Run the command; return its status, its output and its errors."""
    command = [BIN / "shmdc", *words]
    environ = {name: value for name, value in os.environ.items() if name != "CIEL_SHMD"}
    done = subprocess.run(command, input=text, capture_output=True, timeout=40, env=environ)
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.requirement("CIB-10")
def test_the_command_writes_and_reads_objects(pair: BlockStores) -> None:
    place = ("-d", pair.path / "a")
    status, path, _ = shmdc(*place, "write", "c:command", text=CONTENT)
    assert status == 0
    assert shmdc(*place, "load", "c:command") == (0, path, "")
    assert shmdc(*place, "read", "c:command") == (0, CONTENT, "")
    size, checksum = shmdc(*place, "info", "c:command")[1].split()
    assert (int(size), len(checksum)) == (len(CONTENT), 16)
    assert Path(os.fsdecode(path.strip())).read_bytes() == CONTENT
    with ShmdClient(pair.path / "a") as client:
        assert client.load("c:command") == os.fsdecode(path.strip())


@pytest.mark.parametrize(
    "words, status, said",
    [
        (["-d", "A", "load", "c:none"], 1, "c:none: neither in this store nor in another"),
        (["-d", "A", "--here", "read", "c:none"], 1, "c:none: not in this store"),
        (["-d", "A", "info", "../x"], 1, "../x"),
        (["-d", "A/none", "load", "x"], 3, "no daemon serves the block store"),
        (["load", "x"], 2, "no block store: name its directory with -d, or by CIEL_SHMD"),
        (["-d", "A", "fetch", "x"], 2, "there is no command fetch"),
        (["-d", "A", "--here", "write", "x"], 2, "--here is not for the command write"),
        (["-d", "A", "load"], 2, "a command and an id are needed"),
        (["--timeout", "soon", "load", "x"], 2, "a timeout is a number of seconds"),
        (["--quiet", "load", "x"], 2, "there is no option --quiet"),
        (["-d"], 2, "a value is missing after -d"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(
    pair: BlockStores, words: list[str], status: int, said: str
) -> None:
    found = shmdc(*[word.replace("A", str(pair.path / "a")) for word in words])
    assert (found[0], found[1]) == (status, b"")
    assert found[2].startswith("shmdc: ")
    assert said in found[2]
    assert found[2].count("\n") == 1


def test_the_command_gives_up_a_silent_daemon(puppet: Puppet) -> None:
    status, _, said = shmdc("-d", puppet.directory, "--timeout", "0.05", "load", "x")
    assert status == 5
    assert "has not completed the request within 50 ms" in said


def test_the_command_describes_itself() -> None:
    status, printed, _ = shmdc("--help")
    assert status == 0
    for word in (b"load", b"read", b"info", b"write", b"--here", b"--timeout", b"Exit status"):
        assert word in printed


@pytest.mark.slow
def test_its_benchmark_runs() -> None:
    command = [sys.executable, "-m", "benchmarks.storage.shmdc", "200", "2"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    figures = json.loads(done.stdout)
    assert set(figures) == {"open_us", "read_us", "load_us", "request_us", "beyond_open_us"}
    assert min(figures["open_us"], figures["read_us"], figures["load_us"]) > 0
