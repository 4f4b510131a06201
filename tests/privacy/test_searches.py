"""What a search means for the guarantee, and how a run's report comes to say it."""

import json
import math
import os

import pytest

from tff_agg import noise, privacy
from tff_agg.privacy import gaussian, inference_search, losses, training_search


@pytest.fixture
def folder(tmp_path):
    made = privacy.Plan(
        clip_norm=1.0,
        cohort_size=10,
        rounds=8,
        mechanism=noise.tree(),
        noise_multiplier=1.0,
    )
    privacy.write_report(tmp_path / "run", made, run={"name": "trial"})
    return tmp_path / "run"


def read(folder):
    content = json.loads((folder / "privacy_report.json").read_text())
    return content, (folder / "privacy_report.md").read_text()


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_choice_among_runs_composes_all_of_them():
    one = training_search(0.5, 1e-6, runs=1)
    assert one.rho_total == 0.5 and one.epsilon_total == one.epsilon
    assert "stands as it is" in one.paragraph
    many = training_search(0.5, 1e-6, runs=8)
    assert many.rho_total == 4.0
    # Eight Gaussian mechanisms are one with a noise smaller by √8.
    expected = gaussian.epsilon(math.sqrt(8), 1e-6)
    assert many.epsilon_total == pytest.approx(expected)
    assert many.epsilon == pytest.approx(gaussian.epsilon(1.0, 1e-6))
    for words in ("8 private runs", f"{expected:.2f}", "does not cover", "composition"):
        assert words in many.paragraph, words
    assert "stands as it is" not in many.paragraph


def test_ways_at_inference_cost_nothing_beyond_the_runs_they_read():
    apart = {"heldout": 0, "test": 0}
    one = inference_search([0.5], 1e-6, points=52, shared_users=apart)
    assert (one.runs, one.points, one.rho_total) == (1, 52, 0.5)
    for words in ("52 ways", "post-processing", "no privacy", "stands as it is"):
        assert words in one.paragraph, words
    # The mean over several runs decides: it says something about each of them.
    many = inference_search([0.5, 0.5, 1.0], 1e-6, points=52)
    assert (many.runs, many.rho, many.rho_total) == (3, 1.0, 2.0)
    assert "3 private runs" in many.paragraph and "not enough" in many.paragraph
    assert f"{gaussian.epsilon(2.0, 1e-6):.2f}" in many.paragraph


def test_the_sentence_on_tuning_follows_the_users_that_are_shared():
    """Scores on training users' data are no post-processing for those users."""
    searches = (
        lambda **told: training_search(0.5, 1e-6, 3, **told),
        lambda **told: inference_search([0.5], 1e-6, 4, **told),
        lambda **told: inference_search([0.5, 0.5], 1e-6, 4, **told),
    )
    for search in searches:
        apart = search(shared_users={"heldout": 0, "test": 0}).paragraph
        assert "No user of the training data is in the heldout or the test" in apart
        assert "training users' data" not in apart
        shared = search(shared_users={"heldout": 12, "test": 3456}).paragraph
        assert "12 are also in the heldout and 3,456 are also in the test" in shared
        assert "scores there are computed on training users' data" in shared
        assert "costs the users of the training data no privacy" not in shared
        unknown = search().paragraph
        assert "was not counted" in unknown
        assert "costs the users of the training data no privacy" not in unknown


def test_the_delta_of_a_vocabulary_is_taken_off():
    plain = training_search(0.5, 1e-6, 2)
    less = training_search(0.5, 1e-6, 2, delta_of_releases=9e-7)
    assert less.epsilon_total == pytest.approx(gaussian.epsilon(2**0.5, 1e-7))
    assert less.epsilon_total > plain.epsilon_total and less.delta == plain.delta
    assert inference_search([0.5], 1e-6, 2, delta_of_releases=1e-6).epsilon == math.inf


@pytest.mark.parametrize(
    "cost",
    [
        training_search(0.5, 1e-6, 1),
        training_search(0.5, 1e-6, 2),
        inference_search([0.5], 1e-6, 3),
        inference_search([0.5, 0.5], 1e-6, 3),
    ],
)
def test_every_search_tells_that_validation_data_are_not_protected(cost):
    assert "without privacy protection" in cost.paragraph


def test_runs_without_noise_have_no_guarantee_to_weaken():
    for cost in (
        training_search(math.inf, 1e-6, 3),
        inference_search([0.5, math.inf], 1e-6, 3),
    ):
        assert "guarantee" in cost.paragraph and "inf" not in cost.paragraph.split()
        assert "known noise seed" in cost.paragraph
        found = json.loads(json.dumps(cost.to_json(), allow_nan=False))
        assert found["epsilon_total"] is None and found["rho_total"] is None


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"runs .* got 0"):
        training_search(0.5, 1e-6, runs=0)
    with pytest.raises(ValueError, match="rhos"):
        inference_search([], 1e-6, points=3)
    for rho, delta in ((-1.0, 0.1), (math.nan, 0.1), (1.0, 0.0)):
        with pytest.raises(ValueError, match=r"rho|delta"):
            losses.of_rho(rho).epsilon(delta)


def test_a_report_takes_a_search_in_and_keeps_all_else(folder):
    before, page = read(folder)
    assert before["tuning"] == {} and "No search" in page
    cost = training_search(0.5, 1e-6, runs=6)
    privacy.add_search(folder, "../../journal.jsonl", cost)
    content, page = read(folder)
    assert content["tuning"] == {"../../journal.jsonl": cost.to_json()}
    assert content["tuning"]["../../journal.jsonl"]["runs"] == 6
    assert content | {"tuning": {}} == before
    assert cost.paragraph in page and "runs looked at: 6" in page
    assert "No search" not in page
    assert privacy.searches_of(folder) == content["tuning"]


def test_the_same_search_is_told_once_and_others_stay(folder):
    privacy.add_search(folder, "a", training_search(0.5, 1e-6, runs=2))
    later = training_search(0.5, 1e-6, runs=3)
    privacy.add_search(folder, "a", later)
    inference = inference_search([0.5], 1e-6, points=4)
    privacy.add_search(folder, "b", inference)
    content, page = read(folder)
    assert list(content["tuning"]) == ["a", "b"]
    assert later.paragraph in page and inference.paragraph in page
    assert "2 private runs" not in page


def test_telling_again_changes_nothing_and_mends_what_a_kill_left(folder, monkeypatch):
    cost = training_search(0.5, 1e-6, runs=2)
    real, calls = os.replace, []

    def dying(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        with pytest.raises(KeyboardInterrupt):
            privacy.add_search(folder, "a", cost)
    # One file is new, the other whole and old; nothing else is left.
    assert set(files(folder)) == {"privacy_report.json", "privacy_report.md"}
    assert cost.paragraph not in read(folder)[1]
    privacy.add_search(folder, "a", cost)
    assert cost.paragraph in read(folder)[1]
    whole = files(folder)
    calls.clear()
    monkeypatch.setattr(os, "replace", dying)
    privacy.add_search(folder, "a", cost)
    assert files(folder) == whole and calls == []


def test_a_report_from_before_searches_were_told_takes_them_in(folder):
    content, _ = read(folder)
    del content["tuning"]
    (folder / "privacy_report.json").write_text(json.dumps(content))
    assert privacy.searches_of(folder) == {}
    privacy.add_search(folder, "a", training_search(0.5, 1e-6, runs=2))
    assert "2 private runs" in read(folder)[1]
    assert privacy.searches_of(folder / "absent") == {}
    with pytest.raises(FileNotFoundError):
        privacy.add_search(folder.parent, "a", training_search(0.5, 1e-6, runs=2))
