"""The screen treats a server as the capabilities in `Ready(info)` say: it never asks what kind of handle it has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import eagle3chat.ui

ROOT = Path(eagle3chat.ui.__file__).parent
KINDS = ("vllm", "sglang", "llama-server", "mlx_lm", "lm studio", "remoteworker", "decodeworker")
IDENTITIES = ("backend", "device")  # of an Info: who serves, which is for people to read


def branches(source: str) -> Iterator[str]:
    """Places where code chooses by who serves."""
    for node in ast.walk(ast.parse(source)):
        tests: list[ast.AST] = []
        match node:
            case ast.If() | ast.IfExp() | ast.While() | ast.Assert():
                tests = [node.test]
            case ast.Compare() | ast.BoolOp():
                tests = [node]
            case ast.Match():
                tests = [node.subject]
            case ast.comprehension():
                tests = list(node.ifs)
            case ast.Call(func=ast.Name(id="isinstance" | "hasattr" | "getattr")):
                tests = [node]
        for test in tests:
            yield from (f"{node.lineno if hasattr(node, 'lineno') else '?'}: {name}" for name in _asks(test))


def _asks(test: ast.AST) -> Iterator[str]:
    for part in ast.walk(test):
        match part:
            case ast.Attribute(attr=name, value=ast.Name(id="info") | ast.Attribute(attr="info")) if name in IDENTITIES:
                yield f"info.{name}"
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in ("RemoteWorker", "DecodeWorker"):
                yield name
            case ast.Constant(value=str(text)) if any(kind in text.lower() for kind in KINDS):
                yield text


def test_the_screen_never_asks_who_serves() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 50
    found = [f"{path.name}:{place}" for path in files for place in branches(path.read_text(encoding="utf-8"))]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        'if info.backend == "vLLM":\n    pass',
        "x = 1 if self.info.device else 2",
        "match info.backend:\n    case _:\n        pass",
        "isinstance(worker, RemoteWorker)",
        "[x for x in y if chat.info.backend in x]",
        'name.startswith("x") and name == "llama-server"',
    ],
)
def test_a_branch_is_seen(source: str) -> None:
    assert list(branches(source))


def test_capabilities_are_no_branch() -> None:
    source = 'if info is not None and info.fixed_chain:\n    shown = f"{info.backend} {info.device}"'
    assert not list(branches(source))
