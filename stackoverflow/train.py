"""Trains the next-word model with user-level privacy.

  python -m stackoverflow.train --flagfile=stackoverflow/configs/uta_eps18.9.cfg \
      --store=data/stackoverflow --out=runs/uta

Without --store, the data of --source is prepared first (the embedded synthetic data by
default). Run the same command again to go on with a run that was stopped.
"""

import contextlib
import dataclasses
import typing

from absl import app, flags

from stackoverflow import config as configs

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines all flags of the binary."""
    flags.DEFINE_string("out", None, "the run's folder", required=True)
    flags.DEFINE_enum(
        "source",
        "synthetic",
        ["synthetic", "parquet", "official"],
        "without --store: what to prepare a token store from",
    )
    flags.DEFINE_string("path", None, "the file that --source reads")
    flags.DEFINE_integer("vocab_size", 10_000, "without --store: words to keep")
    flags.DEFINE_string(
        "data_dir", "data", "without --store: where prepared token stores are kept"
    )
    define_config_flags()


def define_config_flags(flag_values: flags.FlagValues = FLAGS) -> None:
    """Defines a flag for each field of `TrainConfig`."""
    hints = typing.get_type_hints(configs.TrainConfig)
    makers = {int: flags.DEFINE_integer, float: flags.DEFINE_float}
    for field in dataclasses.fields(configs.TrainConfig):
        text, choices = field.metadata["help"], field.metadata["choices"]
        kinds = [k for k in typing.get_args(hints[field.name]) if k is not type(None)]
        kind = kinds[0] if kinds else hints[field.name]
        arguments = (field.name, field.default)
        if choices:
            flags.DEFINE_enum(*arguments, choices, text, flag_values=flag_values)
        elif kind is bool:
            flags.DEFINE_bool(*arguments, text, flag_values=flag_values)
        else:
            make = makers.get(kind, flags.DEFINE_string)
            make(*arguments, text, flag_values=flag_values)


def config_from_flags() -> configs.TrainConfig:
    """Returns the configuration that the flags give, its token store prepared."""
    from stackoverflow import stores

    values = {
        field.name: getattr(FLAGS, field.name)
        for field in dataclasses.fields(configs.TrainConfig)
    }
    # Before the data: bad flags must not cost minutes of preparation.
    configs.TrainConfig(**values)
    if not values["store"]:
        values["store"] = stores.ensure_store(
            FLAGS.source, FLAGS.path, FLAGS.data_dir, vocab_size=FLAGS.vocab_size
        )
    return configs.TrainConfig(**values)


def main(argv: list[str]) -> int:
    """Runs the training that the flags describe."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    from stackoverflow import interruption, terminal, training

    config: configs.TrainConfig | None = None

    def how_to_go_on() -> str:
        again = "run the same command again to go on."
        if config is None:
            return f"The data are not prepared yet; {again}"
        done = training.rounds_done(FLAGS.out)
        return (
            f"{done} of {config.rounds} rounds are done and saved in {FLAGS.out}; "
            f"{again}"
        )

    with terminal.plain_errors(), interruption.plain_ending(how_to_go_on):
        config = config_from_flags()
        # Closed before an error is told, which would stand above the bar otherwise.
        with contextlib.closing(terminal.ProgressBar(config.rounds)) as bar:
            training.run(config, FLAGS.out, bar)
    return 0


def entry_point() -> None:
    """Runs as the console command `tff-agg-train`."""
    from stackoverflow import terminal

    terminal.run_binary(main, define_flags)


if __name__ == "__main__":
    entry_point()
