"""Predicts the next words after a text, with error bars.

  python -m stackoverflow predict --model=models/uta "how do i"

The model is a folder of `python -m stackoverflow export`. The probability is the
exported model's; the interval is that of the mean probability over the checkpoints that
were exported with it, with 95 % confidence. Without a text it asks for one, again and
again, until end of file.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from tff_agg import fields
from tff_agg.experiment.commands import Command
from tff_agg.fields import described


@dataclasses.dataclass(frozen=True)
class PredictOptions:
    """What `predict` is asked for."""

    model: str = described("", "a folder of `python -m stackoverflow export`")
    words: int = described(10, "how many words to show", at_least=1)

    def __post_init__(self) -> None:
        fields.check(self)
        if not self.model:
            raise ValueError(
                "--model must name a folder of `python -m stackoverflow export`; it is "
                "empty"
            )


def predict(options: PredictOptions, arguments: Sequence[str]) -> int:
    """Shows the next words after the arguments, or after each line that is entered."""
    from stackoverflow import next_words
    from tff_agg.experiment.study import show

    guesses = next_words.NextWords(options.model)
    for text in [" ".join(arguments)] if arguments else _asked():
        guess = guesses(text, options.words)
        if guess.unknown:
            print(f"not in the vocabulary: {', '.join(guess.unknown)}")
        rows = [
            [word, f"{100 * share:.2f}", f"{100 * low:.2f}", f"{100 * high:.2f}"]
            for word, share, low, high in [*guess.words, guess.other]
        ]
        mean = f"mean of {guesses.checkpoints} checkpoints:"
        header = ["next word", "%", f"{mean} 95 % from", "to"]
        table = show.Table(header, rows, guesses.title)
        print(show.render(table), flush=True)
    return 0


def _asked() -> Iterator[str]:
    """Yields what is entered, until end of file."""
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def command(task: object) -> Command:
    """Returns the command."""
    del task
    return Command(predict, (PredictOptions,), arguments="[TEXT]")
