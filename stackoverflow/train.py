"""Trains the next-word model with user-level privacy.

  python -m stackoverflow.train --flagfile=stackoverflow/configs/uta_eps18.9.cfg \
      --store=data/stackoverflow --out=runs/uta

Without --store, the data of --source is prepared first (the embedded synthetic data by
default). Run the same command again to go on with a run that was stopped.
"""

import contextlib

from absl import app, flags

from tff_agg.experiment import config as configs
from tff_agg.experiment import flag_fields

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
    flag_fields.define(configs.TrainConfig, flag_values)


def config_from_flags() -> configs.TrainConfig:
    """Returns the configuration that the flags give, its token store prepared."""
    from stackoverflow.data import prepared as stores

    values = flag_fields.read(configs.TrainConfig, FLAGS)
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
    from tff_agg.experiment import terminal
    from tff_agg.experiment.drivers import train as training

    with terminal.plain_errors():
        config = config_from_flags()
        # Closed before an error is told, which would stand above the bar otherwise.
        with contextlib.closing(terminal.ProgressBar(config.rounds)) as bar:
            training.run(config, FLAGS.out, bar)
    return 0


def entry_point() -> None:
    """Runs as the console command `tff-agg-train`."""
    from tff_agg.experiment import terminal

    terminal.run_binary(main, define_flags)


if __name__ == "__main__":
    entry_point()
