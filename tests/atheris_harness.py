"""Readers under input that grows by what code it reaches, with atheris.

  python -m tests.atheris_harness jsonl -max_total_time=300

Atheris is not among what the project installs (`pip install atheris`). Each target
reads what libFuzzer makes of a whole file; an exception that is not caught ends it with
status 77.
"""

import contextlib
import pathlib
import sys
import tempfile

import atheris

with atheris.instrument_imports(include=["stackoverflow", "tff_agg"]):
    # Also what is imported when it is first needed.
    from stackoverflow.data import official, parquet, text  # noqa: F401
    from tests.checkpoints import test_damaged_store as stores
    from tests.data import test_damaged_token_store as token_stores
    from tests.data import test_fuzzed_readers as readers
    from tests.experiment import test_damaged_run_folder as runs

from tests import fuzzing

# libFuzzer has an alarm of its own.
setattr(fuzzing, "no_hang", contextlib.nullcontext)  # noqa: B010

#: Target → whose whole files it begins with, and which of them is replaced.
TARGETS = {
    **{name: (readers, f"x.{name}") for name in ("csv", "jsonl", "parquet", "sqlite")},
    "ledger": (runs, "ledger.jsonl"),
    "config": (runs, "config.json"),
    "manifest": (stores, "manifests/000000002.json"),
    "users": (token_stores, "users.arrow"),
    "part": (token_stores, "part-00000.arrow"),
    "vocabulary": (token_stores, "vocabulary.json"),
    "store": (token_stores, "manifest.json"),
}


def main(target: str, *flags: str) -> None:
    """Fuzzes a target with libFuzzer's flags; does not return."""
    module, name = TARGETS[target]
    top = pathlib.Path(tempfile.mkdtemp())
    whole, folder = top / "whole", top / "folder"
    module.write_whole(whole)
    module.write_whole(folder)
    (top / "corpus").mkdir()
    (top / "corpus" / "whole").write_bytes((whole / name).read_bytes())

    def read(data: bytes) -> None:
        (folder / name).write_bytes(data)
        with contextlib.redirect_stdout(sys.stderr):
            if module is readers:
                readers.sentences(folder / name)
            elif module is runs:
                runs.check(folder, whole, same_only=False)
            elif module is stores:
                stores.check_readers(folder)
            else:
                with contextlib.suppress(FileNotFoundError):
                    token_stores.sign(folder)
                token_stores.check(folder)

    atheris.Setup([sys.argv[0], str(top / "corpus"), "-timeout=30", *flags], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
