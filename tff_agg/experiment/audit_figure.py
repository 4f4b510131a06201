"""The picture of an audit: scores of canaries that took part, and of the others."""

import os
from collections.abc import Sequence

import numpy as np
from scipy.stats import norm

from tff_agg.audit.findings import Finding
from tff_agg.experiment import figures

_EXCLUDED, _INCLUDED = "#7f7f7f", "#d55e00"


def score_distributions(path: str | os.PathLike, found: Sequence[Finding]) -> None:
    """Draws a panel for each threat model: two histograms and the normal fits.

    Args:
      path: The PNG file to write.
      found: What the audit found, a finding for each threat model.

    Example:
      score_distributions('scores.png', [finding])
    """
    figure, axes = figures.new_figure(len(found), width=4.2)
    for axis, finding in zip(axes, found, strict=True):
        both = np.concatenate([finding.excluded, finding.included])
        edges = np.histogram_bin_edges(both, bins=40)
        grid = np.linspace(edges[0], edges[-1], 200)
        for values, colour, label in (
            (finding.excluded, _EXCLUDED, "did not take part"),
            (finding.included, _INCLUDED, "took part"),
        ):
            axis.hist(
                values, edges, density=True, color=colour, alpha=0.45, label=label
            )
            if (spread := values.std()) > 0:
                axis.plot(grid, norm.pdf(grid, values.mean(), spread), color=colour)
        axis.set_title(
            f"{finding.threat}\nclaimed {finding.claimed:.3g}, estimate "
            f"{finding.estimate:.3g}, lower bound {finding.lower_bound:.3g}",
            fontsize=9,
        )
        axis.set_xlabel("score")
    axes[0].set_ylabel("density")
    axes[-1].legend(frameon=False, fontsize=8)
    figures.save(figure, path)
