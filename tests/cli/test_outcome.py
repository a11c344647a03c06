import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import ciel
from ciel.access.errors import AccessDeniedError, SettingsError
from ciel.cli.main import main
from ciel.cli.outcome import (
    OF_JOB_STATE,
    OutputClosedError,
    Status,
    UsageError,
    conclude,
    status_of,
    text_of,
)
from ciel.cli.parsing.options import seconds
from ciel.client.errors import (
    AccessRefusedError,
    ClusterError,
    ConnectionLostError,
    JobEndedError,
    NoMasterError,
    NotAMasterError,
    PackageError,
    QueryError,
    RequestRefusedError,
    TaskFailedError,
    UploadError,
    WaitTimeoutError,
)
from ciel.core.ids import ObjectId
from ciel.core.jobs import JobState
from ciel.core.refs import Failure


@pytest.mark.parametrize(
    "error, status",
    [
        (TaskFailedError(Failure(ObjectId("x"), "WORD", "story")), 1),
        (JobEndedError(1, "failed", ""), 1),
        (RequestRefusedError("j", "why"), 1),
        (UploadError("f", "why"), 1),
        (FileNotFoundError(2, "No such file", "f"), 1),
        (UsageError("why"), 2),
        (SettingsError("--master", "why"), 2),
        (PackageError("p", 1, "start", "why"), 2),
        (QueryError("job", "no job 9"), 2),
        (NoMasterError("", "why"), 3),
        (NotAMasterError("a", "why"), 3),
        (AccessRefusedError("a", "why"), 3),
        (AccessDeniedError("why"), 3),
        (ConnectionLostError("a", "why"), 3),
        (ClusterError("why"), 3),
        (JobEndedError(1, "cancelled", ""), 4),
        (TaskFailedError(Failure(ObjectId("x"), "CANCELLED", "by its user")), 4),
        (WaitTimeoutError("job 1", 2.0), 5),
        (ZeroDivisionError("why"), 70),
    ],
)
def test_every_error_has_its_exit_status(error: Exception, status: int) -> None:
    assert status_of(error) == status


def test_every_state_in_which_a_job_may_end_has_an_exit_status() -> None:
    assert set(OF_JOB_STATE) == {str(state) for state in JobState} - {"active"}


def fail(error: BaseException) -> int:
    def command() -> int:
        raise error

    return conclude(command)


def test_an_error_is_told_in_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(NoMasterError("h:1", "nothing listens there")) == 3
    assert capsys.readouterr().err == "ciel: no master at h:1: nothing listens there\n"
    assert fail(PermissionError(13, "Permission denied", "f")) == 1
    assert capsys.readouterr().err == "ciel: f: Permission denied\n"


def test_a_bug_is_one_line_with_how_to_report_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CIEL_DEBUG", raising=False)
    assert fail(KeyError("x")) == Status.BUG
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert text.startswith("ciel: a bug in ciel: KeyError: 'x' at test_outcome.py:")
    assert "CIEL_DEBUG=1" in text
    monkeypatch.setenv("CIEL_DEBUG", "1")
    fail(KeyError("x"))
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        assert fail(KeyboardInterrupt()) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "ciel: interrupted\n"


def test_a_request_to_end_is_obeyed_as_shells_tell_it() -> None:
    def command() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    before = signal.getsignal(signal.SIGTERM)
    assert conclude(command) == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_nobody_reading_is_no_error_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert fail(OutputClosedError()) == 141
    assert capsys.readouterr().err == ""


def test_text_of_an_error_without_strerror() -> None:
    assert text_of(WaitTimeoutError("job 3", 1.5)) == "job 3 took longer than 1.5 s"


@pytest.mark.parametrize(
    "text, value",
    [("90", 90), ("1.5s", 1.5), ("10m", 600), ("2 h", 7200), ("1d", 86400), ("5ms", 0.005)],
)
def test_time_spans_are_read_with_their_units(text: str, value: float) -> None:
    assert seconds(text) == value


def test_the_front_door(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ciel 0.")
    assert main(["--help"]) == 0
    assert "submit" in capsys.readouterr().out
    assert main([]) == 2
    capsys.readouterr()
    assert main(["frobnicate"]) == 2
    assert capsys.readouterr().err == (
        "ciel: there is no command 'frobnicate'; ciel --help lists them\n"
    )
    assert main(["job", "lst"]) == 2
    assert capsys.readouterr().err == (
        "ciel: there is no ciel job lst (did you mean list?); ciel job --help lists the verbs\n"
    )


def test_the_version_is_that_of_the_package() -> None:
    assert ciel.__version__ == version("ciel")
