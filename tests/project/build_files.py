"""Reads the project's BUILD files, and compares them with what modules import.

What they use of Starlark is Python, so that they are run here with rules that only
note their arguments.
"""

import ast
import pathlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

PACKAGES = (
    "tff_agg", "stackoverflow", "cifar", "pcvr", "pds", "examples", "benchmarks",
    "tests",
)  # fmt: skip


class Target(NamedTuple):
    """One rule of a BUILD file, its labels written out, its files from the root."""

    label: str
    rule: str
    srcs: tuple[str, ...]
    deps: tuple[str, ...]


def modules(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields every Python file of the project, relative to its root."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield path.relative_to(root)


def targets(root: pathlib.Path) -> list[Target]:
    """Returns the Python targets of all BUILD files below a root."""
    return [
        target
        for package in PACKAGES
        for path in sorted((root / package).rglob("BUILD"))
        for target in _targets_of(path, root)
    ]


def _targets_of(path: pathlib.Path, root: pathlib.Path) -> list[Target]:
    folder = path.parent.relative_to(root).as_posix()
    found: list[Target] = []

    def written_out(label: str) -> str:
        if label.startswith(":"):
            return f"//{folder}{label}"
        return label if ":" in label else f"{label}:{label.rpartition('/')[2]}"

    def glob(include: list[str], exclude: tuple[str, ...] = ()) -> list[str]:
        inner = [p.parent for p in path.parent.rglob("BUILD") if p != path]
        return sorted(
            file.relative_to(path.parent).as_posix()
            for pattern in include
            for file in path.parent.glob(pattern)
            if not any(file.is_relative_to(folder) for folder in inner)
            and file.relative_to(path.parent).as_posix() not in exclude
        )

    def rule_named(rule: str):
        def note(name: str, srcs=(), deps=(), **others):
            files = tuple(f"{folder}/{src}" for src in srcs if ":" not in src)
            labels = tuple(map(written_out, deps))
            found.append(Target(f"//{folder}:{name}", rule, files, labels))

        return note

    rules = {rule: rule_named(rule) for rule in ("py_library", "py_binary", "py_test")}
    nothing = dict.fromkeys(("package", "exports_files", "alias"), lambda *_, **__: 0)
    exec(
        compile(path.read_text(), str(path), "exec"), {**rules, **nothing, "glob": glob}
    )
    return found


def imported(path: pathlib.Path, root: pathlib.Path) -> set[str]:
    """Returns the project's files that a module imports, also inside its functions."""
    names = set()
    for node in ast.walk(ast.parse((root / path).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {
        file
        for name in names
        if name.split(".")[0] in PACKAGES and (file := _file_of(name, root))
    }


def _file_of(name: str, root: pathlib.Path) -> str | None:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        base = pathlib.Path(*parts[:end])
        for candidate in (base.with_suffix(".py"), base / "__init__.py"):
            if (root / candidate).is_file():
                return candidate.as_posix()
    return None


def differences(root: pathlib.Path) -> list[str]:
    """Returns a sentence for everything that modules and targets disagree about."""
    everything = targets(root)
    owners = {
        src: target.label
        for target in everything
        if target.rule == "py_library"
        for src in target.srcs
    }
    problems = [
        f"{path} is in no library"
        for path in map(str, modules(root))
        if path not in owners
    ]
    for target in everything:
        needed = {
            owners[file]
            for src in target.srcs
            for file in imported(pathlib.Path(src), root)
            if file in owners
        } - {target.label}
        if target.rule != "py_library":
            needed -= _below(set(target.deps), everything)
        if missing := sorted(needed - set(target.deps)):
            problems.append(f"{target.label} needs the deps {', '.join(missing)}")
        known = {other.label for other in everything}
        if target.rule != "py_library":
            needed |= known & set(target.deps)
        if idle := sorted(set(target.deps) - needed):
            problems.append(f"{target.label} has deps without use: {', '.join(idle)}")
    return problems


def _below(labels: set[str], everything: list[Target]) -> set[str]:
    """Returns these labels and all that their targets depend on."""
    deps = {target.label: target.deps for target in everything}
    reached: set[str] = set()
    while labels:
        label = labels.pop()
        if label not in reached:
            reached.add(label)
            labels |= set(deps.get(label, ()))
    return reached


if __name__ == "__main__":
    sys.exit("\n".join(differences(pathlib.Path(__file__).resolve().parents[2])) or 0)
