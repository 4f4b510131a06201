"""Pictures hide nothing."""

from tff_agg.experiment import figures
from tff_agg.experiment.figures import Curve


def test_of_two_curves_in_one_place_both_are_seen(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    low, high = [0.1, 0.2, 0.3], [0.2, 0.3, 0.4]
    curves = {
        "first": Curve([1, 2, 3], [low]),
        "elsewhere": Curve([1, 2, 3], [high]),
        "almost first": Curve([1, 2, 3], [[0.1, 0.2, 0.3001]]),
        "other rounds": Curve([1, 2, 4], [low]),
    }
    figures.metric_curves(tmp_path / "a.png", {"": curves})
    styles = {line.get_label(): line.get_linestyle() for line in drawn[0].axes[0].lines}
    assert styles == dict.fromkeys(curves, "-") | {"almost first": "--"}
