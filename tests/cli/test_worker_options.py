import pytest

from ciel.cli.daemons.worker import parser
from ciel.core.admission import Policy


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
