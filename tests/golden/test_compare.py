"""How golden figures are compared: to the last digit where that can be asked."""

import pytest

from tests.golden import compare

GOLDEN = {"loss": "3.630792236328125", "chosen": "uta:2", "seeds": "2.0"}


@pytest.fixture(params=[True, False], ids=["same processor", "another"])
def same(request, monkeypatch):
    monkeypatch.setattr(compare, "_is_the_same_processor", lambda: request.param)
    return request.param


def test_the_last_digits_may_differ_on_another_processor_alone(same):
    figures = GOLDEN | {"loss": "3.6307921064660906"}
    assert list(compare.differences(figures, GOLDEN)) == ["loss"] * same


@pytest.mark.parametrize(
    "change", [{"loss": "3.63080"}, {"chosen": "uta:4"}, {"seeds": "3.0"}]
)
def test_other_figures_and_choices_always_differ(same, change):
    assert list(compare.differences(GOLDEN | change, GOLDEN)) == list(change)


def test_a_figure_of_one_alone_differs(same):
    more = GOLDEN | {"more": "1.0"}
    assert compare.differences(more, GOLDEN) == {"more": ("1.0", None)}
    assert compare.differences(GOLDEN, more) == {"more": (None, "1.0")}
