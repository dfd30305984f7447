"""Imports point one way: cli -> ui | worker -> session -> loop, text, pair -> backends -> values.

Every import statement of the package is read from its source, those inside functions too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import eagle3chat

ROOT = Path(eagle3chat.__file__).parent
TENSOR_LIBRARIES = {"torch", "mlx", "mlx_lm", "transformers", "triton", "torchao"}
SCREEN_LIBRARIES = {"textual", "rich"}
HEAVY = TENSOR_LIBRARIES | SCREEN_LIBRARIES | {"numpy", "tokenizers", "jinja2", "safetensors", "gguf"}

VALUES = {"events", "requests", "sampling", "errors", "config", "private_files", "safe_json", "small_files", "quick"}
COMMAND_LINE = {"cli", "arguments", "train_arguments", "wishes", "opening", "foreground", "report"}
UI_MEETS = {"events", "requests", "sampling", "errors", "crash", "private_files", "safe_json", "worker"}
LOOP_MEETS = {"backend", "requests", "sampling", "events", "errors", "quick"}


@dataclass(frozen=True)
class Import:
    """An import statement: who, whom (a dotted name), and whether it runs when the module is imported."""

    by: str
    of: str
    at_top: bool

    def __str__(self) -> str:
        return f"{self.by} imports {self.of}"


def module_name(path: Path) -> str:
    parts = ["eagle3chat", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, by: str) -> Iterator[Import]:
    """All imports; those under `if TYPE_CHECKING` count for the rule, but do not run."""
    tree = ast.parse(source)
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(by, alias.name, id(node) not in late)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{by}: imports are absolute here"
            for alias in node.names:
                yield Import(by, f"{node.module}.{alias.name}", id(node) not in late)


def all_imports() -> list[Import]:
    paths = sorted(ROOT.rglob("*.py"))
    return [found for path in paths for found in imports_of(path.read_text(encoding="utf-8"), module_name(path))]


def engine_part(name: str) -> str | None:
    """The module of the engine that a dotted name is in; None: it is not in the engine."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["eagle3chat", "engine"] and len(parts) > 2 else None


def is_tensor_file(module: str) -> bool:
    last = module.rsplit(".", 1)[-1]
    return last.startswith(("torch_", "mlx_")) or ".kernels" in module


def is_worker(part: str) -> bool:
    return part == "worker" or part.startswith("worker_")


def breach(found: Import) -> str:
    """Which rule an import breaks; empty: none."""
    library = found.of.split(".")[0]
    if library in TENSOR_LIBRARIES and not is_tensor_file(found.by):
        return "tensor libraries belong in torch_*, mlx_* and kernels"
    if library in SCREEN_LIBRARIES and not found.by.startswith("eagle3chat.ui"):
        return "Textual belongs in ui"
    if library != "eagle3chat":
        return ""
    part, used = engine_part(found.by), engine_part(found.of)
    outside = found.of.split(".")[1] if "." in found.of else ""
    if part is not None:
        return _engine_breach(part, used, outside)
    if found.by.startswith("eagle3chat.ui"):
        if used is not None and used not in UI_MEETS:
            return f"ui meets the engine in {', '.join(sorted(UI_MEETS))} only"
        if is_tensor_file(found.of):
            return "ui holds no tensors"
        if outside == "train":
            return "ui knows no training"
        if outside in COMMAND_LINE or outside.endswith("_command"):
            return "ui is below the command line"
    if found.by.startswith("eagle3chat.train.") and (outside in COMMAND_LINE or outside.endswith("_command")):
        return "training is below the command line"
    if found.by.startswith("eagle3chat.kernels") and outside != "kernels":
        return "the kernels know nothing of the rest"
    if found.by.startswith("eagle3chat.templates") and used is not None and used not in VALUES:
        return "templates know values only"
    if found.by.startswith("eagle3chat.transcript") and "_command" not in found.by and used and used not in VALUES:
        return "transcripts know values only"
    return ""


def _engine_breach(part: str, used: str | None, outside: str) -> str:
    if used is None:
        if outside == "kernels":
            return "" if is_tensor_file(part) else "the kernels are met in torch_* and mlx_*"
        return "" if outside in {"templates", "engine", "__version__"} else "the engine is below everything else"
    if part in VALUES and used not in VALUES:
        return "values know values only"
    if part == "speculate" and used not in LOOP_MEETS:
        return "the loop knows the border only"
    if part == "backend" and used not in VALUES:
        return "the border knows values only"
    if is_worker(used) and not is_worker(part):
        return "the worker is above the engine"
    if used == "session" and not is_worker(part):
        return "the session is above its parts"
    return ""


def test_every_import_keeps_the_rule() -> None:
    broken = [f"{found}: {why}" for found in all_imports() if (why := breach(found))]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("by", "source"),
    [
        ("eagle3chat.engine.session", "def f():\n    import torch.nn"),
        ("eagle3chat.engine.pair", "from mlx import core"),
        ("eagle3chat.report", "from textual.app import App"),
        ("eagle3chat.engine.events", "from eagle3chat.engine.backend import Verdict"),
        ("eagle3chat.engine.speculate", "from eagle3chat.engine.text import Codec"),
        ("eagle3chat.engine.text", "from eagle3chat.engine.session import Session"),
        ("eagle3chat.engine.session", "from eagle3chat.engine.worker import DecodeWorker"),
        ("eagle3chat.engine.worker", "from eagle3chat.ui.app import ChatApp"),
        ("eagle3chat.engine.worker", "from eagle3chat.transcript import Transcript"),
        ("eagle3chat.ui.app", "from eagle3chat.engine.session import Session"),
        ("eagle3chat.ui.app", "from eagle3chat.engine import pair"),
        ("eagle3chat.ui.app", "from eagle3chat.cli import main"),
        ("eagle3chat.engine.session", "from eagle3chat.kernels import cpu"),
        ("eagle3chat.kernels.cpu", "from eagle3chat.engine.errors import BackendError"),
        ("eagle3chat.templates", "from eagle3chat.engine.text import Codec"),
        ("eagle3chat.transcript_read", "from eagle3chat.engine.session import Session"),
        ("eagle3chat.train.job", "import torch"),
        ("eagle3chat.train.torch_job", "from eagle3chat.wishes import flag"),
        ("eagle3chat.ui.app", "from eagle3chat.train.recipe import Recipe"),
        ("eagle3chat.engine.session", "from eagle3chat.train.rounds import Rounds"),
    ],
)
def test_the_rule_sees_a_breach(by: str, source: str) -> None:
    assert next(breach(found) for found in imports_of(source, by))


@pytest.mark.parametrize(
    ("by", "source"),
    [
        ("eagle3chat.engine.torch_draft", "import torch"),
        ("eagle3chat.engine.torch_linear", "from eagle3chat.kernels import cpu_linear"),
        ("eagle3chat.kernels.gemm", "import mlx.core as mx\nfrom eagle3chat.kernels.cpu import library"),
        ("eagle3chat.ui.app", "from textual.app import App\nfrom eagle3chat.engine.worker import DecodeWorker"),
        ("eagle3chat.engine.worker_child", "from eagle3chat.engine.session import Session"),
        ("eagle3chat.run_command", "from eagle3chat.engine.session import Session"),
        ("eagle3chat.train.torch_head", "import torch\nfrom eagle3chat.engine.torch_rope import frequencies"),
    ],
)
def test_the_rule_lets_pass_what_is_meant(by: str, source: str) -> None:
    found = list(imports_of(source, by))
    assert found
    assert not any(breach(each) for each in found)


def test_no_import_cycle() -> None:
    modules = {module_name(path) for path in ROOT.rglob("*.py")}
    edges: dict[str, set[str]] = {module: set() for module in modules}
    for found in all_imports():
        target = found.of if found.of in modules else found.of.rpartition(".")[0]
        if found.at_top and target in modules and target != found.by:
            edges[found.by].add(target)
    while leaves := {module for module, needs in edges.items() if not needs}:
        edges = {module: needs - leaves for module, needs in edges.items() if module not in leaves}
    assert not edges, f"these import each other: {sorted(edges)}"


def loaded_by(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has imported after running the code."""
    script = f"import sys\n{code}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.splitlines()[-1].split())


def test_help_imports_nothing_heavy() -> None:
    code = (
        "from eagle3chat.cli import main\n"
        "helps = [[name, '--help'] for name in ('run', 'bench', 'train', 'eval')]\n"
        "for argv in (['--help'], *helps, ['--version']):\n"
        "    try:\n        main(argv)\n    except SystemExit as end:\n        assert end.code == 0"
    )
    loaded = loaded_by(code)
    assert "eagle3chat" in loaded
    assert not loaded & HEAVY


def test_the_screen_imports_no_tensors() -> None:
    loaded = loaded_by("import eagle3chat.ui.app")
    assert "textual" in loaded
    assert not loaded & (TENSOR_LIBRARIES | {"numpy", "tokenizers", "safetensors", "gguf"})


def test_help_is_quick() -> None:
    best = min(_seconds_of_help() for _ in range(3))
    print(f"--help: {best:.3f} s")
    assert best < 1.0  # 0.05 s on an idle machine; generous, since tests share theirs


def _seconds_of_help() -> float:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "eagle3chat", "--help"], capture_output=True, text=True, timeout=60)
    seconds = time.perf_counter() - start
    assert done.returncode == 0
    assert "run" in done.stdout
    return seconds
