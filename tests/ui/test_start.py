"""The start: what the first paint need not wait for."""

import json
import subprocess
import sys

PROGRAM = """
import asyncio, json, sys
from eagle3chat.cli import main
import eagle3chat.chat_command, eagle3chat.engine.worker
from eagle3chat.engine.requests import Controls, PairOptions
from eagle3chat.ui.run import ChatApp

class Worker:
    def __init__(self, options, on_event): pass
    def start(self): pass
    def close(self, timeout=3.0): pass

async def paint():
    async with ChatApp(PairOptions(), Controls(3), worker_factory=Worker).run_test() as pilot:
        await pilot.press("h", "i")
        assert pilot.app.stage.prompt.text == "hi"
        return sorted({name.partition(".")[0] for name in sys.modules} | {n for n in sys.modules if "eagle3" in n})

print("modules", json.dumps(asyncio.run(paint())), file=sys.__stdout__)
"""
HEAVY = {"torch", "mlx", "numpy", "transformers", "tokenizers", "safetensors", "jinja2", "httpx", "requests"}
LATER = {"markdown_it", "pygments", "sqlite3", "eagle3chat.ui.widgets.toolkit_markdown", "eagle3chat.ui.plain"}


def test_the_first_paint_imports_nothing_heavy():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("modules "))
    modules = set(json.loads(line.removeprefix("modules ")))
    assert "eagle3chat.ui.app" in modules
    assert not modules & (HEAVY | LATER)
    assert not [name for name in modules if name.startswith("eagle3chat.ui.screens.")]
