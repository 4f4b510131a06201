"""Next-word prediction on StackOverflow, as a task of the experiment layer."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pds import groups
from stackoverflow.data import preparation, vocabulary
from stackoverflow.data.sources import KINDS, TYPES
from stackoverflow.data.token_store import TokenStore
from stackoverflow.model import metrics, next_word
from tff_agg.aliases import Json
from tff_agg.experiment import task
from tff_agg.experiment.config import TrainConfig
from tff_agg.fields import NOT_GIVEN, described
from tff_agg.recycling.metrics import Metric
from tff_agg.recycling.outputs import Predict, Predictions

if TYPE_CHECKING:
    import tensorflow as tf

    from tff_agg.federated.trainers import Trainer

PLAIN_VOCABULARY = (
    "The vocabulary: its words are the most frequent ones of the training data, "
    "counted without noise and without a limit on the occurrences of one user, so that "
    "a word which one user wrote often enough is in it. (stackoverflow prepare makes "
    "one with both if --vocab_user_cap and --vocab_noise_multiplier are given.)"
)


@dataclasses.dataclass(frozen=True)
class StackOverflowConfig(TrainConfig):
    """A run on StackOverflow: what every run has, and the model's own sizes."""

    store: str = described(
        "", "folder of the prepared token store", role="place", data=True
    )
    max_sentences: int = described(
        16, "sentences of a client used per round, at most", at_least=1,
        role="cohort",
    )  # fmt: skip
    validation_users: int = described(
        0, "validate on sentences of so many users of the split heldout; 0: of all",
        role="watching",
    )  # fmt: skip
    embedding_size: int = described(24, "width of the embedding", at_least=1)
    lstm_size: int = described(48, "units of the LSTM", at_least=1)


_NO_STORE = ("store", NOT_GIVEN)


@dataclasses.dataclass(frozen=True)
class StackOverflowData:
    """What a token store is prepared from, where none is named."""

    source: str = described(
        "synthetic", "without --store: what to prepare a token store from", KINDS,
        only_with=_NO_STORE,
    )  # fmt: skip
    path: str | None = described(
        None, "the file or folder that --source reads", only_with=_NO_STORE
    )
    vocab_size: int = described(
        10_000, "without --store: words to keep", at_least=1, only_with=_NO_STORE
    )
    data_dir: str = described(
        "data", "without --store: where prepared token stores are kept",
        only_with=_NO_STORE,
    )  # fmt: skip


class StackOverflow(task.UserTask):
    """A user is a client; questions and answers are the two shifting populations."""

    package = "stackoverflow"
    Config = StackOverflowConfig
    Data = StackOverflowData
    examples_field = "max_sentences"
    model_sizes = tuple(
        {"embedding_size": width, "lstm_size": 2 * width} for width in (24, 48, 96)
    )
    metrics = (
        Metric("accuracy", is_share=True),
        Metric("accuracy_with_oov", is_share=True),
        Metric("loss", higher_is_better=False),
        Metric("perplexity", higher_is_better=False),
    )
    config: StackOverflowConfig
    data: TokenStore

    def open_data(self) -> TokenStore:
        """Opens the token store."""
        return TokenStore.open(self.config.store)

    @property
    def fingerprint(self) -> str:
        """The token store's own."""
        return self.data.fingerprint

    def users(self) -> np.ndarray:
        """Returns the users of the split 'train'."""
        return self.data.users("train")

    def client(self, user: int, group: str, round_number: int) -> task.Client:
        """Returns a user's sentences, all or those of the group's type."""
        rows = self.data.rows(
            user,
            type=group if group in TYPES else None,
            max_sentences=self.config.max_sentences,
            seed=self.config.seed,
            round=round_number,
        )
        # Users side by side are padded to the one with most tokens, not sentences.
        tokens = int(np.count_nonzero(rows))
        return task.Client(self.data.user_name(user), [rows], len(rows), tokens)

    def heldout_clients(self, number: int) -> Sequence[task.Client]:
        """Returns users of the split 'heldout', spread over it."""
        everyone = self.data.users("heldout")
        return [
            self.client(int(user), "all", 0)
            for user in everyone[:: max(1, len(everyone) // number)][:number]
        ]

    def privacy_facts(self) -> task.PrivacyFacts:
        """The vocabulary was chosen with noise, or no guarantee covers it."""
        return task.PrivacyFacts(
            releases=self.data.releases,
            shared_users=self.data.users_shared_with_train,
            not_covered=() if self.data.releases else (PLAIN_VOCABULARY,),
            initial_weights="they are drawn at random from the run's seed",
        )

    @classmethod
    def prepared(
        cls, config: StackOverflowConfig, data: StackOverflowData | None = None
    ) -> StackOverflowConfig:
        """Returns the configuration with a token store, prepared if none was named."""
        if config.store:
            return config
        data = data or StackOverflowData()
        store = preparation.ensure_store(
            data.source, data.path, data.data_dir, vocab_size=data.vocab_size
        )
        return dataclasses.replace(config, store=store)

    def shifting_groups(self) -> Sequence[groups.Group]:
        """Returns who has questions and who has answers."""
        return groups.by_type(self.data, "train")

    @property
    def sizes(self) -> next_word.ModelConfig:
        """The sizes of the model."""
        return next_word.ModelConfig(
            vocab_size=len(self.data.vocabulary.words),
            embedding_size=self.config.embedding_size,
            lstm_size=self.config.lstm_size,
            max_tokens=self.data.max_tokens,
        )

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The LSTM's weights."""
        return dict(zip(next_word.WEIGHT_NAMES, self.sizes.weight_shapes, strict=True))

    def model(self) -> "Trainer":
        """Returns the local training that does no work on padding."""
        from stackoverflow.model import group_training, local_training

        make = (
            group_training.packed_group_trainer
            if self.group_size > 1
            else local_training.packed_trainer
        )
        return make(
            self.sizes,
            self.config.client_learning_rate,
            batch_size=self.config.batch_size,
            epochs=self.config.local_epochs,
        )

    @property
    def group_size(self) -> int:
        """Users of small models train side by side."""
        return self.config.group_size(self.num_parameters)

    def dataset(self, client: task.Client) -> "tf.data.Dataset":
        """Returns all sentences of a user as one element."""
        import tensorflow as tf

        return tf.data.Dataset.from_tensors(client.arrays[0])

    def group(self, clients: Sequence[task.Client]) -> "tf.data.Dataset":
        """Returns the sentences of several users."""
        from stackoverflow.model import group_training

        return group_training.group_of_rows([client.arrays[0] for client in clients])

    def heldout_users(self) -> Sequence[groups.Group]:
        """Returns the users of the split 'heldout' who are not in 'train' as well."""
        found = (
            groups.by_type(self.data, "heldout")
            if self.config.pds
            else groups.everyone(self.data.users("heldout"))
        )
        names = self.data.user_name
        known = {names(user) for user in self.users()}
        return [
            groups.Group(name, np.array([u for u in users if names(u) not in known]))
            for name, users in found
        ]

    def initial_weights(self) -> task.Weights:
        """Returns the weights of round 0."""
        weights = next_word.initial_weights(self.sizes, self.config.seed)
        return self.named([np.asarray(w) for w in weights])

    def to_keras(self, weights: task.Weights) -> "tf.keras.Model":
        """Returns the model in stock layers: rows of ids in, logits out."""
        model = next_word.keras_model(self.sizes)
        model.set_weights(list(self.named(weights).values()))
        return model

    def export_texts(self) -> Mapping[str, str]:
        """The words, in the order of their ids from 1."""
        words = list(self.data.vocabulary.words)
        return {vocabulary.FILE_NAME: json.dumps(words, ensure_ascii=False, indent=0)}

    def export_facts(self) -> Mapping[str, Json]:
        """The ids that are no words, and the longest sentence of training."""
        sizes = self.sizes
        ids = {"padding": 0, "begin": sizes.bos, "end": sizes.eos, "unknown": sizes.oov}
        return {"special_ids": ids, "max_tokens": sizes.max_tokens}

    def sample(self, split: str, examples: int, seed: int) -> task.Sample:
        """Draws sentences, questions and answers in their shares."""
        users = None
        counts = {kind: self.data.summary[split][f"{kind}s"] for kind in TYPES}
        if split == "heldout" and self.config.validation_users:
            everyone = self.data.users(split)
            few = min(self.config.validation_users, len(everyone))
            generator = np.random.default_rng(seed)
            users = np.sort(generator.choice(everyone, few, replace=False))
            counts = {
                kind: sum(self.data.num_sentences(user, kind) for user in users)
                for kind in TYPES
            }
        total = sum(counts.values())
        if not total:
            path = self.data.path
            raise ValueError(f"the split {split!r} of {path} has no sentences")
        rows = {}
        for kind, count in counts.items():
            if wanted := round(min(examples, total) * count / total):
                rows[kind] = self.data.sample_rows(
                    split, int(wanted), seed, kind, users
                )
        return rows

    def evaluator(self) -> Callable[[task.Weights, task.Sample], task.Scores]:
        """Returns accuracy, loss and perplexity, over all and for either type."""
        from stackoverflow.model import scoring

        evaluate = scoring.evaluator(self.sizes)

        def scores(weights: task.Weights, sample: task.Sample) -> task.Scores:
            tensors = list(self.named(weights).values())
            sums = {kind: evaluate(tensors, rows) for kind, rows in sample.items()}
            totals = {"all": metrics.add(sums.values())} | sums
            return {kind: metrics.finalize(total) for kind, total in totals.items()}

        return scores

    def trivial(self, sample: task.Sample) -> task.Scores:
        """Returns the scores of the words' shares: always the most frequent word."""
        targets = {kind: rows[:, 1:][rows[:, 1:] > 0] for kind, rows in sample.items()}
        return metrics.of_shares(self.sizes, targets)

    @property
    def classes(self) -> int:
        """Every id can be predicted."""
        return self.sizes.num_ids

    @property
    def positions_per_example(self) -> int:
        """One prediction for each token of a sentence."""
        return self.sizes.max_tokens

    def predictor(self) -> Predict[task.Weights]:
        """Returns the distributions at the words that count, in their order."""
        from stackoverflow.model import scoring

        sizes = self.sizes

        def predict(weights: task.Weights, rows: np.ndarray) -> Predictions:
            tensors = list(self.named(weights).values())
            return scoring.predictions(sizes, tensors, rows)

        return predict
