"""`doctor`: every answer has its reason, and what is broken does not break it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from eagle3chat import doctor_libraries, doctor_machine
from eagle3chat.cli import main
from eagle3chat.doctor import Finding
from eagle3chat.doctor_libraries import probe
from eagle3chat.doctor_machine import bandwidth, kernels
from eagle3chat.doctor_places import place, short
from eagle3chat.doctor_terminal import answers
from eagle3chat.engine.errors import BackendError
from eagle3chat.engine.torch_device import start_kernels
from eagle3chat.kernels import cpu


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    return tmp_path


def test_the_document_and_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_libraries, "PROBES", {})  # torch takes seconds to import
    monkeypatch.setattr(doctor_machine, "BUFFER", 1 << 20)
    assert main(["doctor", "--json"]) == 0
    findings = [Finding(**row) for row in json.loads(capsys.readouterr().out)]
    assert {f.area for f in findings} == {"machine", "library", "kernels", "terminal", "place"}
    assert all(f.why for f in findings if f.state != "ok")
    assert not [f for f in findings if f.state == "bad"]
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(f"{sum(f.state == 'ok' for f in findings)} in order")
    assert any("GB/s read by" in line for line in lines)


def test_a_library_that_crashes_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashing.py").write_text("import os; os.abort()")
    (tmp_path / "missing.py").write_text("raise ImportError('libfoo.so: no such file')")
    (tmp_path / "hanging.py").write_text("import time; time.sleep(60)")
    (tmp_path / "fine.py").write_text('print(\'[["x gpu", "none", "no driver"]]\')')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert [f.state for f in probe("x", "crashing")] == ["bad"]
    assert "libfoo.so" in next(probe("x", "missing")).why
    assert next(probe("x", "hanging", 0.5)).value == "does not answer"
    assert list(probe("x", "fine")) == [Finding("device", "x gpu", "none", "off", "no driver")]


def test_the_torch_probe_says_what_there_is() -> None:
    found = list(probe("torch", "eagle3chat.engine.torch_probe"))
    assert found[0].name == "torch cpu"
    assert found[0].state == "ok"


def test_bandwidth_is_a_figure() -> None:
    value = bandwidth(8 << 20).value
    assert 0.01 < float(value.split()[0]) < 10_000


def test_a_variant_of_the_kernels_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(count: int) -> None:
        raise ValueError("EAGLE3CHAT_KERNELS=x: this CPU has portable.")

    monkeypatch.setattr(cpu, "set_threads", refuse)
    with pytest.raises(BackendError, match="this CPU has portable"):
        start_kernels(1)


@pytest.mark.parametrize(("wish", "state", "words"), [("off", "off", "KERNELS=off"), ("nonesuch", "bad", "this CPU")])
def test_why_kernels_are_off(wish: str, state: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if wish != "off" and cpu.library() is None:
        pytest.skip("the kernels were not built")
    monkeypatch.setenv(cpu.SWITCH, wish)
    cpu.library.cache_clear()
    try:
        [found] = kernels()
    finally:
        cpu.library.cache_clear()
    assert found.state == state
    assert words in found.why


def test_each_other_variant_has_its_reason() -> None:
    if cpu.library() is None:
        pytest.skip("the kernels were not built")
    first, *others = kernels()
    assert first.state == "ok"
    assert len(others) == len(cpu.Variant) - 1
    assert all(f.state == "off" and f.why for f in others)


def test_places(tmp_path: Path) -> None:
    assert place("x", tmp_path / "a" / "b", private=True).value.endswith("(not there yet)")
    (tmp_path / "file").write_text("")
    assert "is no directory" in place("x", tmp_path / "file" / "b", private=True).why
    loose = tmp_path / "loose"
    loose.mkdir(mode=0o755)
    assert "chmod 700" in place("x", loose, private=True).why
    assert place("x", loose, private=False).state == "ok"
    if os.geteuid() != 0:
        loose.chmod(0o500)
        assert "cannot be written" in place("x", loose, private=False).why


def test_a_home_is_a_tilde() -> None:
    assert short(Path.home() / "x") == "~/x"
    assert short(Path(f"{Path.home()}other")) == f"{Path.home()}other"


@pytest.mark.parametrize(
    ("answer", "values"),
    [
        (b"", ["none"]),
        (b"\x1b[?62;c", ["plain", "no"]),
        (b"\x1b[?1u\x1b[?2026;2$y\x1b[?62;4c", ["told apart (shift+enter is a key of its own)", "yes"]),
        (b"\x1b[?2026;0$y\x1b[?6c", ["plain", "no"]),
    ],
)
def test_answers_of_terminals(answer: bytes, values: list[str]) -> None:
    assert [f.value for f in answers(answer)] == values
