from ciel.core.history import EVENTS_MAX, TEXT_MAX_LENGTH, History


def test_a_history_lists_events_with_ages_oldest_first() -> None:
    story = History()
    story.record(10.0, "attempt 1 failed")
    story.record(12.5, "attempt 2 failed")
    assert story.lines(13.0) == ["3.0 s ago: attempt 1 failed", "0.5 s ago: attempt 2 failed"]


def test_a_history_without_events_is_empty() -> None:
    assert History().lines(0.0) == []


def test_a_long_history_keeps_its_first_and_last_events() -> None:
    story = History()
    for number in range(100):
        story.record(float(number), f"event {number}")
    lines = story.lines(100.0)
    half = EVENTS_MAX // 2
    told = [int(line.rpartition(" ")[2]) for line in lines if "event" in line]
    assert told == [*range(half), *range(100 - half, 100)]
    assert lines[half] == f"({100 - EVENTS_MAX} more)"


def test_a_long_text_is_cut() -> None:
    story = History()
    story.record(0.0, "x" * 10 * TEXT_MAX_LENGTH)
    assert len(story.lines(0.0)[0]) < TEXT_MAX_LENGTH + 20
