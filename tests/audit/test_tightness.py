"""With all iterates the audit is as strong as the analysis; and what a report says."""

import json

import pytest

from benchmarks import audit as benchmark
from tests.audit import small_runs as small
from tff_agg import privacy
from tff_agg.audit import findings, threats
from tff_agg.experiment import canary_audit

ROUNDS = 24


@pytest.mark.parametrize("name", benchmark.mechanisms(ROUNDS))
def test_one_participation_is_estimated_within_a_fifth_of_the_claim(name):
    plan = privacy.Plan(
        clip_norm=1.0,
        cohort_size=100,
        rounds=ROUNDS,
        mechanism=benchmark.mechanisms(ROUNDS)[name],
        noise_multiplier=0.8,
    )
    made = benchmark.run(plan, count=2500, momentum=0.9, seed=11)
    found = findings.audit(plan, *made, threats.all_iterates())
    assert found.estimate == pytest.approx(found.claimed, rel=0.2)
    assert 0.7 * found.claimed < found.lower_bound <= found.claimed


def test_a_report_takes_in_what_an_audit_found_and_forgets_what_an_earlier_one_did(
    tmp_path,
):
    plan = small.plan_of()
    privacy.write_report(tmp_path, plan)
    pages = []
    for factor in (0.5, 1):
        found = small.audit(plan, 0, done=small.scaled(plan, factor))
        entry = {"findings": [found.to_json()], "paragraph": "By canaries."}
        privacy.add_audit(tmp_path, entry)
        content = json.loads((tmp_path / "privacy_report.json").read_text())
        assert content["audit"] == entry
        pages.append((tmp_path / "privacy_report.md").read_text())
    assert "The claim is REFUTED. By canaries." in pages[0]
    assert "REFUTED" not in pages[1]
    assert "The claim is not refuted. By canaries." in pages[1]
    canary_audit.draw([found, found], tmp_path / "scores.png")
    assert (tmp_path / "scores.png").stat().st_size > 5000
