"""Writes the file tree of the README: every file of the program with what its first line says that it is.

python scripts/tree.py            writes it
python scripts/tree.py --check    exits with 1 where the README has another one
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
HEAD = "## Files\n\n"
COLUMN = 34  # cells before what a file is
PLAIN = {  # what has no docstring of its own
    "eagle3chat/data/": "the built-in draft, prompts for bench",
    "eagle3chat/kernels/src/": "the CPU kernels in C++: AVX512, AVX2, NEON, portable; a small thread pool",
    "eagle3chat/ui/chat.tcss": "the screen's style sheet",
    "docs/": "pictures, and pages on single subjects",
    "tests/": "mirrors the tree; reference/ is the slow truth, contract/ holds backends to it, gpu/ needs CUDA",
    "setup.py": "the optional C++ extension",
    "Makefile": "make chat, make test",
}


def tracked() -> list[str]:
    """Paths of the repository's files, those not yet committed too."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    return sorted({name for name in names if name and (ROOT / name).is_file()})


def says(path: Path) -> str:
    """The first sentence of a module, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    line = " ".join(text.split("\n\n")[0].split())
    return line.split(". ")[0].rstrip(".")


def tree() -> str:
    """The lines: a directory's name, then its files, each with what it is."""
    lines: list[str] = []
    shown = ""
    for name in tracked():
        path = Path(name)
        if path.suffix != ".py" or path.parts[0] not in ("eagle3chat", "scripts") or path.name == "__init__.py":
            continue
        folder = f"{path.parent.as_posix()}/"
        if folder != shown:
            shown = folder
            lines.append(f"    {folder}")
        lines.append(f"      {path.name:<{COLUMN - 6}}{says(ROOT / name)}".rstrip())
    lines += [f"    {name:<{COLUMN - 4}}{what}" for name, what in PLAIN.items() if what]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or check; the exit code."""
    text = README.read_text(encoding="utf-8")
    before, _, _ = text.partition(HEAD)
    wanted = before + HEAD + tree()
    if "--check" in sys.argv:
        if text != wanted:
            print("The README's file tree is out of date: python scripts/tree.py", file=sys.stderr)
        return int(text != wanted)
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
