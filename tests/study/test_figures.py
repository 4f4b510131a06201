"""Pictures hide nothing."""

from tff_agg.experiment.study import figures
from tff_agg.experiment.study.figures import Curve


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
    figures.curves(tmp_path / "a.png", {"": curves})
    styles = {line.get_label(): line.get_linestyle() for line in drawn[0].axes[0].lines}
    assert styles == dict.fromkeys(curves, "-") | {"almost first": "--"}


def test_every_seed_and_every_mean_is_shown(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    lines = {"last": [0.10, 0.12, 0.14], "UTA_inf 100": [0.15, 0.16, 0.17]}
    figures.points(tmp_path / "a.png", lines)
    (axis,) = drawn[0].axes
    assert [text.get_text() for text in axis.texts] == ["12.00", "16.00"]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == list(lines)
    points, _, others, _ = (line.get_xdata() for line in axis.lines)
    assert [*points.round(6)] == [10, 12, 14] and [*others.round(6)] == [15, 16, 17]
    low, high = axis.get_ylim()
    assert low < 1 and high > 2  # both lines are inside


def test_more_curves_than_colours_are_all_drawn_and_told_apart(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    curves = {f"method {n}": Curve([1, 2], [[0.1 * n, 0.2 * n]]) for n in range(14)}
    figures.curves(tmp_path / "a.png", {"": curves})
    lines = drawn[0].axes[0].lines
    assert [line.get_label() for line in lines] == list(curves)
    looks = {(line.get_color(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(curves)


def test_no_legend_covers_a_curve(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    many = {
        f"a rather long name of method {n}": Curve([1, 2], [[n, 1]]) for n in range(9)
    }
    few = dict(list(many.items())[:2])
    figures.curves(tmp_path / "a.png", {"one": many, "other": many})
    figures.curves(tmp_path / "a.png", {"one": many, "other": few})
    for figure, count in zip(drawn, (1, 2), strict=True):
        figure.canvas.draw()
        legends = figure.legends + [axis.get_legend() for axis in figure.axes]
        legends = [legend for legend in legends if legend is not None]
        assert len(legends) == count
        for legend in legends:
            box = legend.get_window_extent()
            assert not any(box.overlaps(axis.bbox) for axis in figure.axes)
            assert figure.bbox.containsx(box.x0) and figure.bbox.containsy(box.y0)
            assert figure.bbox.containsx(box.x1)
