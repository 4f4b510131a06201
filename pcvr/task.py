"""Predicted conversion after a click, as a task of the experiment layer."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pcvr import auc, clicks, features, split, synthetic
from pds import groups
from tff_agg.experiment.jax_task import JaxTask
from tff_agg.experiment.rows import Examples
from tff_agg.experiment.sample_config import SampleConfig
from tff_agg.experiment.task import PrivacyFacts, Sample, Scores, Weights
from tff_agg.fields import described
from tff_agg.recycling.grids import Grids
from tff_agg.recycling.metrics import OutputJudge

if TYPE_CHECKING:
    import jax

    from pcvr.model import Sizes
    from tff_agg.sample.per_example import SampleModel

MADE_UP = "made-up clicks: the figures say nothing about any real data"
_HOURS = 3_600_000


@dataclasses.dataclass(frozen=True)
class PcvrConfig(SampleConfig):
    """A run on clicks: what every run of DP-SGD has, the data and the model's sizes."""

    data: str = described(
        "", "file of clicks: .parquet or .csv (docs/pcvr.md)", role="place", data=True
    )
    data_note: str = described(
        "", "what the data are, for reports: a proxy, for example", role="cohort"
    )
    synthetic: bool = described(False, "made-up clicks, no file", role="cohort")
    synthetic_clicks: int = described(
        20_000, "how many made-up clicks", at_least=10, role="cohort",
        only_with=("synthetic", (True,)),
    )  # fmt: skip
    feature_classes: str = described(
        features.NEWS, "class=column:buckets,column … for each encoder"
    )
    train_share: float = described(
        0.8, "share of all clicks, the first in time, to train on", role="cohort"
    )
    heldout_share: float = described(
        0.1, "share of the clicks after those for validation; the rest is for the test",
        role="cohort",
    )  # fmt: skip
    embedding_size: int = described(8, "width of an embedding", at_least=1)
    encoder_size: int = described(16, "units of an encoder", at_least=1)
    top_size: int = described(16, "units of the top", at_least=1)
    pds_groups: str = described(
        "label", "what the shift moves between: label: without and with a conversion; "
        "hour: clicks before and after noon (UTC)",
        ("label", "hour"), role="cohort", only_with=("pds", (True,)),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        features.parse(self.feature_classes)
        if bool(self.data) == self.synthetic:
            raise ValueError(
                f"data={self.data!r}: name a file of clicks, or give synthetic instead"
            )


class Data(NamedTuple):
    """The clicks that a configuration asks for.

    Attributes:
      clicks: The columns.
      rows: The hashed features.
      cuts: By split, which of them are in it.
    """

    clicks: clicks.Clicks
    rows: np.ndarray
    cuts: Mapping[str, slice]


class Pcvr(JaxTask):
    """One click is one example; the split is by time."""

    package = "pcvr"
    Config = PcvrConfig
    metrics = (auc.AUC_LOSS, auc.LOG_LOSS)
    no_vote = (
        "what is used is the predicted chance of a conversion, not a label, and models "
        "are judged by how it ranks the clicks; votes over labels rank nothing"
    )
    config: PcvrConfig
    data: Data

    @classmethod
    def grids(cls, config: PcvrConfig) -> Grids:
        """Returns the paper's: two windows, of three and of five."""
        del config
        return Grids(ks=(3, 5))

    # The clicks.

    def open_data(self) -> Data:
        """Reads or makes the clicks."""
        config, classes = self.config, self._features
        columns = [feature.column for feature in classes]
        if config.synthetic:
            table = synthetic.clicks(config.synthetic_clicks)
            read = clicks.from_table(table, columns, "synthetic")
        else:
            read = clicks.read(config.data, columns)
        shares = (config.train_share, config.heldout_share)
        return Data(
            read, features.encode(read, classes), split.by_time(read.times, *shares)
        )

    @functools.cached_property
    def _features(self) -> tuple[features.Feature, ...]:
        """The classes of features."""
        return features.parse(self.config.feature_classes)

    def _part(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        cut = self.data.cuts[name]
        return self.data.rows[cut], self.data.clicks.labels[cut]

    def training_arrays(self) -> Sequence[np.ndarray]:
        """Returns hashed features and labels of the first clicks in time."""
        return self._part("train")

    def evaluation_examples(self, split: str) -> Mapping[str, Examples]:
        """Returns hashed features and labels of later clicks."""
        return {"all": self._part(split)}

    def shifting_groups(self) -> Sequence[groups.Group]:
        """Returns the two halves that the shift moves between."""
        cut = self.data.cuts["train"]
        if self.config.pds_groups == "label":
            # The rule of even and odd classes: class 0 and class 1.
            return groups.by_label_parity(self.data.clicks.labels[cut])
        late = self.data.clicks.times[cut] // _HOURS % 24 >= 12
        names = {"before_noon": ~late, "after_noon": late}
        return [groups.Group(k, np.flatnonzero(there)) for k, there in names.items()]

    def privacy_facts(self) -> PrivacyFacts:
        """Says how many clicks one user has, and what the data are."""
        users, cuts = self.data.clicks.users, self.data.cuts
        not_covered, shared = [], None
        if users is not None:
            trained, of_each = np.unique(users[cuts["train"]], return_counts=True)
            shared = {
                name: int(np.isin(trained, users[cuts[name]]).sum())
                for name in ("heldout", "test")
            }
            not_covered.append(
                f"People: what is protected is one click. The {of_each.sum():,} clicks "
                f"of training are of {len(of_each):,} users, up to {of_each.max():,} "
                f"of one, and {(of_each > 1).mean():.0%} of the users have more than "
                "one. For k clicks of one user together ε is up to k times as large."
            )
        if note := MADE_UP if self.config.synthetic else self.config.data_note:
            not_covered.append(f"The data, which no guarantee makes better: {note}.")
        return PrivacyFacts(
            shared_users=shared,
            not_covered=not_covered,
            initial_weights="they are drawn at random from the run's seed",
        )

    # The model.

    @property
    def sizes(self) -> "Sizes":
        """The sizes of the model; imports JAX."""
        from pcvr import model

        config = self.config
        return model.Sizes(
            self._features, config.embedding_size, config.encoder_size, config.top_size
        )

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Tables of embeddings, encoders, top."""
        return self.sizes.shapes

    def initial_weights(self) -> Weights:
        """Returns the weights of step 0."""
        from pcvr import model

        return model.initial_weights(self.sizes, self.config.seed)

    def sample_model(self) -> "SampleModel":
        """Returns the loss, and its clipped sums in closed form."""
        from pcvr import model
        from tff_agg.sample.per_example import SampleModel

        sizes = self.sizes

        def loss(
            weights: Mapping[str, "jax.Array"], example: Sequence["jax.Array"]
        ) -> "jax.Array":
            rows, label = example
            return model.losses(sizes, weights, rows[None], label[None])[0]

        return SampleModel(
            loss,
            functools.partial(model.clipped_sum, sizes),
            example_bytes=model.example_bytes(sizes),
        )

    def logits(
        self, weights: Mapping[str, "jax.Array"], features: "jax.Array"
    ) -> "jax.Array":
        """Returns 0 and the log odds of a conversion."""
        import jax.numpy as jnp

        from pcvr import model

        odds = model.logits(self.sizes, weights, features)
        return jnp.stack([jnp.zeros_like(odds), odds], axis=1)

    # Evaluation.

    @property
    def classes(self) -> int:
        """No conversion, conversion."""
        return 2

    def evaluator(self) -> Callable[[Weights, Sample], Scores]:
        """Returns AUC-loss and mean logistic loss."""
        predict = self.predictor()

        def evaluate(weights: Weights, sample: Sample) -> Scores:
            scores, labels = predict(weights, self.flat_sample(sample))
            return {"all": auc.values(scores[:, 1], labels)}

        return evaluate

    def trivial(self, sample: Sample) -> Scores:
        """Returns the scores of one chance for all clicks: the share of conversions."""
        labels = self.flat_sample(sample).labels
        chances = np.full(len(labels), labels.mean())
        return {"all": auc.values(chances, labels)}

    def judge(self) -> OutputJudge:
        """Mean outputs are judged by their ranks."""
        return auc.judge()
