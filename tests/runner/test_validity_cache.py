"""What the library has said of a configuration is said again, without asking it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.probe.protocol import BuildAnswer, BuildRequest
from bisect_cfg.runner.validity_cache import MOST_UNANSWERED, ConfigChecks


class Library:
    """Refuses b=2 where a=1, and more than two processes where c=1; looks at b only where a=1."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, item: BuildRequest) -> BuildAnswer:
        self.asked += 1
        a, b, c = (item.overrides.get(name) for name in "abc")
        if a == 3:
            return BuildAnswer(error="it was ended", unanswered=True)
        reads = ["a", "c", *(["b"] if a == 1 else [])]
        error = "b" if a == 1 and b == 2 else "c" if c == 1 and item.world_size > 2 else None
        return BuildAnswer(None if error else {"a": a}, error, reads)


def request(overrides: dict[str, int], world_size: int = 1) -> BuildRequest:
    return BuildRequest("trl", "GRPOConfig", {}, overrides, world_size)


REQUESTS = st.builds(request, st.fixed_dictionaries(dict.fromkeys("abcd", st.integers(0, 2))), st.integers(1, 3))


@given(st.lists(REQUESTS, min_size=1, max_size=40))
def test_each_answer_is_the_librarys_and_a_resumed_study_asks_nobody(tmp_path_factory, requests) -> None:
    path, library = tmp_path_factory.mktemp("study") / "validity.json", Library()
    checks = ConfigChecks(path, library)
    assert [checks.error(item) for item in requests] == [Library()(item).error for item in requests]
    assert library.asked <= len({(*map(item.overrides.get, "abc"), item.world_size) for item in requests})
    answers = [checks.resolve(item) for item in requests]
    checks.save()
    asked, again = library.asked, ConfigChecks(path, library)
    assert [again.error(item) for item in requests] == [checks.error(item) for item in requests]
    assert [again.resolve(item) for item in requests] == answers and library.asked == asked


def test_what_ends_its_process_is_left_to_the_trials_and_soon_not_asked_any_more(tmp_path) -> None:
    library = Library()
    checks = ConfigChecks(tmp_path / "validity.json", library)
    assert checks.resolve(request({"a": 3})).unanswered
    assert [checks.error(request({"a": 3, "b": number})) for number in range(9)] == [None] * 9
    assert library.asked == 1 + MOST_UNANSWERED
