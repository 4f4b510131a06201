"""Predicts the next words after a text, with error bars.

  python -m stackoverflow.predict --model=models/uta "how do i"

The model is a folder of `stackoverflow.export`. The probability is the exported
model's; ± is the 95 % interval of the mean probability over the checkpoints that were
exported with it. Without a text it asks for one, again and again, until end of file.
"""

import functools
from collections.abc import Iterator, Sequence

from absl import flags

from tff_agg.experiment import binaries
from tff_agg.experiment.commands import flags as flag_fields


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags."""
    define = functools.partial(flag_fields.define_one, values)
    define("string", "model", None, "a folder of stackoverflow.export")
    define("integer", "words", 10, "how many words to show", 1)


def main(values: flags.FlagValues, arguments: Sequence[str]) -> int:
    """Shows the next words after the arguments, or after each line that is entered."""
    from stackoverflow import next_words
    from tff_agg.experiment import terminal

    if not values.model:
        raise ValueError("--model must name a folder of stackoverflow.export")
    predict = next_words.NextWords(values.model)
    for text in [" ".join(arguments)] if arguments else _asked():
        guess = predict(text, values.words)
        if guess.unknown:
            print(f"not in the vocabulary: {', '.join(guess.unknown)}")
        rows = [
            [word, f"{100 * share:.2f}", f"± {100 * error:.2f}"]
            for word, share, error in [*guess.words, guess.other]
        ]
        print(terminal.table(["next word", "%", "95 %"], rows), flush=True)
    return 0


def _asked() -> Iterator[str]:
    """Yields what is entered, until end of file."""
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def entry_point() -> None:
    """Runs as the console command `tff-agg-predict`."""
    binaries.run_main(define_flags, main, takes_arguments=True)


if __name__ == "__main__":
    entry_point()
