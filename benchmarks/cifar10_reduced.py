r"""CIFAR-10 with a small WideResNet: the paper's arms at a size that one core can do.

    python -m benchmarks.cifar10_reduced --data_dir=../shared/data --out=results/cifar10

WRN-10-1 in place of WRN-16-4, images of 16 × 16 pixels, those training images that are
there, 60 steps of 512 images, noise of ε = 8. Every arm has four candidates, the
learning rates 1, 2, 4 and 8, chosen on validation data with seed 100; β and k are those
of the paper's rows for ε = 8, τ is two thirds of the run. The rest is as in
`cifar_table`: the seeds are known, so that such runs have no guarantee; it goes on
where it stopped.
"""

import json
import pathlib

from absl import flags

from benchmarks import cifar_arms as arms
from benchmarks.cifar_lanes import TRAINED, Bundle, Wanted, name_of
from benchmarks.cifar_table import TUNING_SEED, Study, gains, say, table
from cifar.task import CifarConfig
from tff_agg import files
from tff_agg.experiment import binaries
from tff_agg.experiment.commands import flags as flag_fields
from tff_agg.recycling import inference

TASKS = (arms.ORIGINAL, arms.SHIFT)
# Does the network learn at all at this size; and with as many groups in the
# normalisation as the paper's wider network has?
PROBES = {"no_noise": {}, "no_noise_16_groups": {"groups": 16}}
_PROBED = (arms.plain(4.0),)


def probe(out: pathlib.Path, data_dir: str) -> None:
    """Trains without noise, and prints validation accuracy."""
    for name, changes in PROBES.items():
        shared = arms.base(arms.REDUCED, arms.ORIGINAL, data_dir, TUNING_SEED)
        without = {"epsilon": None, "noise_multiplier": 0.0}
        config = CifarConfig(**{**shared, **without, **changes})
        bundle = Bundle(config, _PROBED, out / f"probe_{name}")
        bundle.run(Wanted(inference.Grid(uta=(10,))), say)
        for one in _PROBED:
            found = bundle.scores(one)["scores"]["heldout"]
            say(
                f"{name}: {name_of(one)}: {found[TRAINED]:.4f}, "
                f"mean of the last ten {found['UTA_inf 10']:.4f}"
            )


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags."""
    flag_fields.define_one(
        values, "string", "data_dir", "../shared/data", "folder with cifar10/"
    )
    flag_fields.define_one(values, "string", "out", "results/cifar10", "folder")
    flag_fields.define_one(values, "integer", "seeds", 3, "runs of each line")
    flag_fields.define_one(
        values, "list", "tasks", list(TASKS), "with and without a shift"
    )
    flag_fields.define_one(
        values, "boolean", "probes", False, "train without noise, too"
    )


def main(values: flags.FlagValues) -> int:
    """Trains what is missing and prints the table."""
    out = pathlib.Path(values.out)
    study, found = Study(out, values.data_dir, range(values.seeds)), {}
    if values.probes:
        probe(out, values.data_dir)
    for task in values.tasks:
        lines = found[task] = study.lines(arms.REDUCED, task, study.seeds)
        say(f"\n{task}, seeds {list(study.seeds)}\n{table(lines)}")
        if len(study.seeds) > 1:
            say(gains(lines))
        files.write_text(out / "table.json", json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    binaries.run_main(define_flags, main, needs_tensorflow=False)
