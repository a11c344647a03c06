import pytest

from ciel.cli.daemons.worker import parser
from ciel.cli.submission.options import needs_of, parse
from ciel.core.admission import Policy
from ciel.core.offers.resources import ONE, Offer


@pytest.mark.parametrize(
    "words, policy",
    [([], Policy(adapts=True)), (["--io", "off"], Policy()), (["--io", "3"], Policy(3))],
)
def test_disk_jobs_adapt_unless_told_otherwise(words: list[str], policy: Policy) -> None:
    assert parser().parse_args(words).io == policy


def test_what_is_no_number_of_disk_jobs_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--io", "0"])
    assert ended.value.code == 2
    assert "'0' is not off, adaptive or a number of 1 to 1000" in capsys.readouterr().err


def test_submit_adds_up_the_resources_that_it_names() -> None:
    words = ["--resource", "gpu=0.5", "--resource", "a/b=2", "--where", "zone=b or has x", "ls"]
    needs = needs_of(parse(words))
    assert needs.resources == (("a/b", 2 * ONE), ("gpu", ONE // 2))
    assert needs.where == "zone=b or has x"


@pytest.mark.parametrize(
    "words, why",
    [
        (["--resource", "gpu", "ls"], "has no amount"),
        (["--resource", "gpu=1", "--resource", "gpu=2", "ls"], "gpu is named twice"),
        (["--resource", "gpu=0.00001", "ls"], "more than 4 decimal places"),
        (["--where", "zone=b and", "ls"], "the name of a label is expected, at character 11"),
    ],
)
def test_submit_says_what_is_wrong(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(words)
    assert why in " ".join(capsys.readouterr().err.split())


def test_a_worker_offers_amounts_indices_and_labels() -> None:
    words = ["--resource", "gpu=[0-1]", "--resource", "x=2", "--label", "zone=b"]
    options = parser().parse_args(words)
    assert options.resource == [Offer("gpu", 2 * ONE, ("0", "1")), Offer("x", 2 * ONE)]
    assert options.label == [("zone", "b")]


@pytest.mark.parametrize(
    "words, why",
    [
        (["--resource", "gpu=[0,0]"], "names the index 0 twice"),
        (["--label", "zone"], "has no value"),
    ],
)
def test_a_worker_says_what_is_wrong(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(words)
    assert why in " ".join(capsys.readouterr().err.split())
