"""The list of planted bugs fits the code as it is, and the quick ones are seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "mutations.py"
sys.path.insert(0, str(SCRIPT.parent))

from mutations import Edit, Mutation, read_mutations  # noqa: E402

MUTATIONS = read_mutations()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_bug_can_be_planted(mutation: Mutation) -> None:
    source = (ROOT / "eagle3chat" / mutation.file).read_text(encoding="utf-8")
    bad = mutation.planted(source)
    assert bad != source
    compile(bad, mutation.file, "exec")
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), test


def test_names_are_unique_and_every_backend_has_the_same_bugs() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names)
    bugs = {kind: {n.partition(": ")[2] for n in names if n.startswith(kind)} for kind in ("torch", "mlx")}
    own = {
        "torch": "a window's rows lie one off after it moved",
        "mlx": "a window says that it can go back to anything",
    }
    assert bugs["torch"] - {own["torch"]} == bugs["mlx"] - {own["mlx"]}


@pytest.mark.parametrize("source", ["nothing of it", "twice: here, and here"])
def test_a_text_that_is_not_there_once_is_refused(source: str) -> None:
    mutation = Mutation("a", "b.py", (Edit("here", "there"),), ())
    with pytest.raises(ValueError, match=r"times in b\.py: 'here'"):
        mutation.planted(source)


def test_the_quick_ones_are_seen_and_one_that_nobody_sees_is_told(tmp_path: Path) -> None:
    quick = [mutation.name for mutation in MUTATIONS if mutation.quick]
    own = tmp_path / "list.toml"
    harmless = '{ old = "index = emitted = 0", new = "emitted = index = 0" }'
    seen = '{ old = "while count < len(verdict.drafted)", new = "while count + 1 < len(verdict.drafted)" }'
    test = '"tests/engine/test_speculate.py::test_every_acceptance_count_occurs"'
    entry = '[[mutation]]\nname = "{}"\nfile = "engine/speculate.py"\nedits = [{}]\ntests = [{}]\n'
    own.write_text(entry.format("harmless", harmless, test) + entry.format("last draft ignored", seen, test))
    ours = subprocess.run([sys.executable, str(SCRIPT), "--list", str(own)], capture_output=True, text=True)
    assert ours.returncode == 1, ours
    assert [line.split("  ")[0].strip() for line in ours.stdout.splitlines()] == ["NOT SEEN", "seen"], ours
    theirs = subprocess.run([sys.executable, str(SCRIPT), "--quick"], capture_output=True, text=True)
    assert theirs.returncode == 0, theirs
    assert all(any(name in line and line.startswith("seen") for line in theirs.stdout.splitlines()) for name in quick)
