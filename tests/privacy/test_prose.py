"""Templates: every figure that they name is needed, and nothing else is."""

import jinja2
import jinja2.meta
import pytest

from tff_agg.noise import tree
from tff_agg.privacy import Plan, Release, prose, report, training_search

RELEASES = (
    Release("vocabulary", rho=0.02, delta=1e-7, is_gaussian=True, method="noisy"),
)
PLAN = {
    "no_guarantee": None,
    "rounds": 2000,
    "rho": 0.5,
    "training_rho": 0.48,
    "epsilon": 3.0,
    "delta": 1e-6,
    "releases": RELEASES,
    "delta_of_releases": 1e-7,
    "cipher": None,
}
OF_USERS = ("rho", "training_rho", "releases", "delta_of_releases")
SAMPLED = {k: v for k, v in PLAN.items() if k not in OF_USERS} | {"rho_note": "ρ"}
SEARCH = {
    "runs": 2,
    "rho": 0.5,
    "rho_total": 1.0,
    "delta": 1e-6,
    "epsilon": 3.0,
    "epsilon_total": 4.5,
    "shared": {"test": 2},
}
PAGE = report.report(
    Plan(
        clip_norm=1.0, cohort_size=100, rounds=200, mechanism=tree(),
        noise_multiplier=1.0, releases=RELEASES,
    ),
    run={"commit": "abc"},
) | {"audit": None, "membership": None}  # fmt: skip
# By template, figures with which it says each of its sentences once.
FIGURES = {
    "dp_ftrl": [
        PLAN,
        {**PLAN, "releases": ()},
        {**PLAN, "no_guarantee": "none: no noise is added"},
        {**PLAN, "cipher": "AES-256-CTR"},
    ],
    "dp_sgd": [SAMPLED, {**SAMPLED, "cipher": "AES-256-CTR"}],
    "first_weights": [{"initial_weights": None}, {"initial_weights": "random"}],
    "scored_on": [{"shared": None}, {"shared": {"test": 0}}, {"shared": {"test": 2}}],
    "so_far": [{}],
    "known_seed": [{}],
    "participation": [{"schema": "at most once", "checked": x} for x in (True, False)],
    "page": [
        PAGE,
        {**PAGE, "audit": {"findings": [], "paragraph": "It is little."}},
        {
            **PAGE,
            "membership": {
                "table": {"head": ("AUC",), "rows": [("0.5",)]},
                "paragraph": "Nothing.",
            },
        },
    ],
    "training_search": [SEARCH, {**SEARCH, "runs": 1}],
    "inference_search": [
        {**SEARCH, "points": 52},
        {**SEARCH, "points": 52, "runs": 1, "shared": {"test": 0}},
    ],
}


def test_every_template_is_looked_at():
    names = [name.partition(".")[0] for name in prose.environment().list_templates()]
    assert sorted(names) == sorted(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_is_named_and_missed(name):
    environment = prose.environment()
    source = environment.loader.get_source(environment, f"{name}.jinja")[0]
    named = jinja2.meta.find_undeclared_variables(environment.parse(source))
    named -= set(environment.globals)
    if "scored_on" in source:
        named.add("shared")
    assert named == set().union(*FIGURES[name])
    for figure in named:
        missed = 0
        for given in FIGURES[name]:
            less = {k: v for k, v in given.items() if k != figure}
            try:
                prose.paragraph(name, **less)
            except jinja2.UndefinedError as error:
                assert figure in str(error)
                missed += 1
        assert missed, f"{name} says nothing of {figure}"


@pytest.mark.parametrize("name", FIGURES)
def test_texts_read_as_prose(name):
    for figures in FIGURES[name]:
        text = prose.paragraph(name, **figures)
        for sign in ("{", "}", "  ", " ,", " .", " ;", "None"):
            assert sign not in text, (name, sign, text)


def test_the_report_names_the_cipher_and_keeps_its_line_on_floating_point():
    plan = Plan(
        clip_norm=1.0, cohort_size=100, rounds=200, mechanism=tree(),
        noise_multiplier=1.0,
    )  # fmt: skip
    lines = {
        cipher: [
            line
            for line in report.report(plan, cipher=cipher)["not_covered"]
            if line.startswith("Floating-point noise")
        ]
        for cipher in (None, "AES-256-CTR")
    }
    assert "not made for cryptography" in lines[None][0]
    (line,) = lines["AES-256-CTR"]
    assert "noise from AES-256-CTR" in line and "low-order bits" in line
    assert "not made for cryptography" not in line


def test_paragraphs_of_searches_are_the_templates():
    found = training_search(0.5, 1e-6, runs=4, shared_users={"test": 0})
    assert found.paragraph.startswith("What is trained was chosen among 4")
    assert found.paragraph.endswith("On public data nothing is lost by that.")
