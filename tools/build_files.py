"""Writes one BUILD file per package from what its modules import.

`python -m tools.build_files` writes them; `--check` only compares, names every module
or test whose target is missing or whose deps differ from its imports, and fails.

Targets: a `py_library` per module, a `py_binary` beside it where the module runs as a
program, a `py_test` per test file. Packages of other people are targets in
//third_party, which stand for what requirements.lock installs.
"""

import argparse
import ast
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

PACKAGES = (
    "tff_agg", "stackoverflow", "cifar", "pcvr", "pds", "examples", "benchmarks",
    "tests", "tools",
)  # fmt: skip
# Import names whose package has another name.
RENAMED = {"tree": "dm-tree", "absl": "absl-py", "sklearn": "scikit-learn"}
# Known to type checkers only: nothing installs it.
TYPE_STUBS = ("_typeshed",)
HEADER = "# Written by `python -m tools.build_files` from the modules' imports.\n"


class Target(NamedTuple):
    """One rule of a BUILD file."""

    rule: str
    name: str
    srcs: tuple[str, ...]
    deps: tuple[str, ...]


def modules(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields every Python file of the project, relative to its root."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield path.relative_to(root)


def imported_names(source: str) -> set[str]:
    """Returns what a module imports, also inside its functions, as dotted names."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"relative import on line {node.lineno}: write it out")
            assert node.module
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def label_of(path: pathlib.Path) -> str:
    """Returns the label of the library target that holds a module."""
    folder = path.parent.as_posix()
    name = path.parent.name if path.stem == "__init__" else path.stem
    return f"//{folder}:{name}"


def dependency(name: str, root: pathlib.Path) -> str | None:
    """Returns the label of what a dotted import name stands for; None for Python's."""
    parts = name.split(".")
    if parts[0] in sys.stdlib_module_names or parts[0] in TYPE_STUBS:
        return None
    if parts[0] not in PACKAGES:
        package = RENAMED.get(parts[0], parts[0].replace("_", "-"))
        return f"//third_party:{package}"
    for end in range(len(parts), 0, -1):
        base = pathlib.Path(*parts[:end])
        for candidate in (base.with_suffix(".py"), base / "__init__.py"):
            if (root / candidate).is_file():
                return label_of(candidate)
    raise ValueError(f"no module of the project is called {name}")


def targets_of(path: pathlib.Path, root: pathlib.Path) -> list[Target]:
    """Returns the targets that one module needs."""
    source = (root / path).read_text()
    own = label_of(path)
    deps = {dependency(name, root) for name in imported_names(source)} - {None, own}
    name = own.rpartition(":")[2]
    ordered = tuple(sorted(str(dep) for dep in deps))
    if path.name.startswith("test_"):
        runner = "//tests:pytest_main"
        return [Target("py_test", name, (path.name,), (*ordered, runner))]
    found = [Target("py_library", name, (path.name,), ordered)]
    if '__name__ == "__main__"' in source:
        found.append(Target("py_binary", f"{name}_main", (path.name,), (own,)))
    return found


def shorten(label: str, folder: str) -> str:
    """Writes a label as its own package's BUILD file would."""
    package, _, name = label.removeprefix("//").partition(":")
    if package == folder:
        return f":{name}"
    return f"//{package}" if package.rpartition("/")[2] == name else label


def render(folder: str, targets: Iterable[Target]) -> str:
    """Returns the text of a package's BUILD file."""
    blocks = [HEADER + '\npackage(default_visibility = ["//visibility:public"])\n']
    if folder == "tests":
        blocks.append('exports_files(["pytest_main.py"])\n')
    for target in targets:
        lines = [f"{target.rule}(", f'    name = "{target.name}",']
        srcs, main = list(target.srcs), None
        if target.rule == "py_test":
            srcs.append("//tests:pytest_main.py")
            main = "//tests:pytest_main.py"
            lines.append(f'    args = ["$(location {target.srcs[0]})"],')
        elif target.rule == "py_binary":
            main = target.srcs[0]
        lines += _listing("srcs", srcs)
        if main:
            lines.append(f'    main = "{main}",')
        lines += _listing("deps", sorted(shorten(d, folder) for d in target.deps))
        blocks.append("\n".join([*lines, ")"]) + "\n")
    return "\n".join(blocks)


def _listing(key: str, values: list[str]) -> list[str]:
    if not values:
        return []
    if len(values) == 1:
        return [f'    {key} = ["{values[0]}"],']
    return [f"    {key} = [", *(f'        "{v}",' for v in values), "    ],"]


def render_third_party(labels: Iterable[str]) -> str:
    """Returns the BUILD file that stands for the packages of requirements.lock."""
    text = HEADER + (
        "#\n# Each target stands for a package that requirements.lock installs into\n"
        "# the Python that runs the target; Bazel fetches nothing.\n\n"
        'package(default_visibility = ["//visibility:public"])\n'
    )
    for label in sorted(labels):
        text += f'\npy_library(name = "{label.rpartition(":")[2]}")\n'
    return text


def build_files(root: pathlib.Path) -> dict[str, str]:
    """Returns the wanted text of every BUILD file below the root, by its folder."""
    by_folder: dict[str, list[Target]] = {}
    for path in modules(root):
        by_folder.setdefault(path.parent.as_posix(), []).extend(targets_of(path, root))
    third_party = {
        dep
        for targets in by_folder.values()
        for target in targets
        for dep in target.deps
        if dep.startswith("//third_party:")
    }
    texts = {folder: render(folder, found) for folder, found in by_folder.items()}
    texts["third_party"] = render_third_party(third_party)
    return texts


def parse(text: str) -> dict[str, dict[str, object]]:
    """Reads a BUILD file back: target name → its rule and arguments."""
    found = {}
    for node in ast.parse(text).body:
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            arguments = {
                str(k.arg): ast.literal_eval(k.value)
                for k in call.keywords
                if k.arg is not None
            }
            if "name" in arguments:
                found[arguments["name"]] = {"rule": call.func.id, **arguments}
    return found


def differences(root: pathlib.Path) -> list[str]:
    """Returns a sentence for every target that its module's imports contradict."""
    problems = []
    wanted_files = build_files(root)
    for folder, wanted_text in wanted_files.items():
        path = root / folder / "BUILD"
        actual = parse(path.read_text()) if path.is_file() else {}
        wanted = parse(wanted_text)
        for name, target in wanted.items():
            if name not in actual:
                problems.append(f"{folder}/BUILD has no target {name!r}")
            elif actual[name] != target:
                changed = sorted(
                    key
                    for key in actual[name].keys() | target.keys()
                    if actual[name].get(key) != target.get(key)
                )
                problems.append(
                    f"{folder}/BUILD: {', '.join(changed)} of {name!r} should be "
                    f"{[target.get(key) for key in changed]}"
                )
        for name in actual.keys() - wanted.keys():
            problems.append(f"{folder}/BUILD: {name!r} stands for no module")
    for path in root.rglob("BUILD"):
        folder = path.parent.relative_to(root).as_posix()
        if folder.split("/")[0] in PACKAGES and folder not in wanted_files:
            problems.append(f"{folder}/BUILD stands in a folder without modules")
    return problems


def main() -> int:
    """Writes or checks the BUILD files of the checkout that holds this file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent
    if arguments.check:
        problems = differences(root)
        for problem in problems:
            print(problem)
        if problems:
            print("`make format` writes the BUILD files anew.")
        return bool(problems)
    for folder, text in build_files(root).items():
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "BUILD").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
