"""Plants known bugs, one at a time, in a copy of the package, and demands that the tests see each of them.

    python scripts/mutations.py [--only WORD ...] [--quick] [--list FILE]

The list is scripts/mutations.toml. The working tree is never written to: package and tests are copied to a temporary
directory, and every test runs there in a process of its own. First all named tests must pass on the copy as it is.
Prints a table. Exit code 1 when a bug was not seen, when a text to replace is no longer there exactly once, or when a
test does not run; 0 when all were seen. Mutations of a backend whose library is not installed are left out, with a
word.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".toml")
COPIED = ("eagle3chat", "tests", "pyproject.toml")
LIBRARIES = {"mlx": ("mlx", "mlx_lm"), "torch": ("torch",)}
PRELOADED = ("numpy", "textual.app", "pytest", "torch")  # before forking: it takes longer than the tests
SECONDS = 600  # a test run that takes longer has hung
PASSED, FAILED, NONE = 0, 1, 5  # pytest's exit codes


@dataclass(frozen=True, slots=True)
class Edit:
    """A text that occurs once in a file, and what takes its place."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """A bug to plant."""

    name: str
    file: str  # below eagle3chat/
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]  # pytest's names
    quick: bool = False

    def needs(self, library: str) -> bool:
        """Whether its file or its tests are of a backend."""
        return library in f"{self.file} {' '.join(self.tests)}"

    @property
    def missing(self) -> str:
        """A library that its tests need and that is not installed; empty: none."""
        for word, modules in LIBRARIES.items():
            for module in modules:
                if self.needs(word) and importlib.util.find_spec(module) is None:
                    return module
        return ""

    def planted(self, source: str) -> str:
        """The file with the bug.

        Raises:
            ValueError: A text does not occur exactly once.
        """
        for edit in self.edits:
            if source.count(edit.old) != 1:
                raise ValueError(f"{source.count(edit.old)} times in {self.file}: {edit.old.strip()!r}")
            source = source.replace(edit.old, edit.new)
        return source


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutation."""

    mutation: Mutation
    word: str  # "seen", "hung", "NOT SEEN", "STALE", "BROKEN", "left out"
    detail: str = ""

    @property
    def good(self) -> bool:
        """Whether nothing is to be done."""
        return self.word in ("seen", "hung", "left out")


def read_mutations(file: Path = LIST) -> tuple[Mutation, ...]:
    """The list of a TOML file."""
    entries = tomllib.loads(file.read_text(encoding="utf-8"))["mutation"]
    return tuple(
        Mutation(
            name=entry["name"],
            file=entry["file"],
            edits=tuple(Edit(edit["old"], edit["new"]) for edit in entry["edits"]),
            tests=tuple(entry["tests"]),
            quick=entry.get("quick", False),
        )
        for entry in entries
    )


@contextlib.contextmanager
def copied(root: Path = ROOT) -> Iterator[Path]:
    """A temporary copy of package and tests."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as made:
        copy = Path(made) / "copy"
        copy.mkdir()
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, copy / name)
        yield copy


def run_tests(copy: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """pytest's exit code and output for tests of a copy, in a process of its own; None: it hung."""
    log = copy.parent / "log.txt"
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = _tested(copy, tests, log)
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return (None if status == -signal.SIGALRM else status), log.read_text(encoding="utf-8", errors="replace")


def _tested(copy: Path, tests: Sequence[str], log: Path) -> int:
    """In the child: the tests, with the copy's package."""
    signal.alarm(SECONDS)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(copy)
    os.environ["EAGLE3CHAT_CONTRACT_BUNDLES"] = str(copy.parent / "bundles")
    sys.path[:] = [str(copy), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
    sys.dont_write_bytecode = True  # two versions of a file may have one size and one second
    importlib.invalidate_caches()
    package = importlib.import_module("eagle3chat")
    assert Path(str(package.__file__)).is_relative_to(copy), package.__file__
    pytest = importlib.import_module("pytest")
    code = int(pytest.main(["-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]))
    sys.stdout.flush()
    return code


def tried(copy: Path, mutation: Mutation) -> Outcome:
    """Plant a mutation, run its tests, take it out again."""
    file = copy / "eagle3chat" / mutation.file
    clean = file.read_text(encoding="utf-8")
    try:
        bad = mutation.planted(clean)
    except ValueError as error:
        return Outcome(mutation, "STALE", str(error))
    file.write_text(bad, encoding="utf-8")
    try:
        code, output = run_tests(copy, mutation.tests)
    finally:
        file.write_text(clean, encoding="utf-8")
    if code is None:
        return Outcome(mutation, "hung")
    if code == PASSED:
        return Outcome(mutation, "NOT SEEN", ", ".join(mutation.tests))
    if code == FAILED:
        lines = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return Outcome(mutation, "seen", lines[0].partition(" - ")[0].split("/")[-1] if lines else "")
    return Outcome(mutation, "BROKEN", (output.strip().splitlines() or ["no output"])[-1])


def tried_all(mutations: Sequence[Mutation], root: Path = ROOT) -> Iterator[Outcome]:
    """All mutations in turn, on one copy.

    Raises:
        SystemExit: A test fails without any bug.
    """
    wanted = [mutation for mutation in mutations if not mutation.missing]
    for mutation in mutations:
        if mutation.missing:
            yield Outcome(mutation, "left out", f"{mutation.missing} is not installed")
    for name in PRELOADED:
        if name in LIBRARIES and not any(mutation.needs(name) for mutation in wanted):
            continue
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with copied(root) as copy:
        code, output = run_tests(copy, sorted({test for mutation in wanted for test in mutation.tests}))
        if code != PASSED:
            print(output[-4000:])
            raise SystemExit("The tests do not pass without any bug.")
        for mutation in wanted:
            yield tried(copy, mutation)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the list, or part of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="those whose names have one of these")
    parser.add_argument("--quick", action="store_true", help="the few that the test suite tries too")
    parser.add_argument("--list", type=Path, default=LIST, metavar="FILE", help="another list")
    options = parser.parse_args(arguments)
    mutations = [
        mutation
        for mutation in read_mutations(options.list)
        if (mutation.quick or not options.quick)
        and (not options.only or any(word in mutation.name for word in options.only))
    ]
    if not mutations:
        print("No mutation has such a name.")
        return 1
    good = True
    for outcome in tried_all(mutations):
        good = good and outcome.good
        print(f"{outcome.word:9} {outcome.mutation.name:56} {outcome.detail}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
