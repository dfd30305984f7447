"""`eagle3chat train` on a tiny target: from nothing to a draft that the engine opens; going on; refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ggufs import tiny_gguf
from tiny import tiny_bundle

from eagle3chat.cli import main
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.checkpoint import open_draft

TINY = ["--conversations", "24", "--max-new-tokens", "24", "--vocabulary", "96", "--depth", "3", "--workers", "1"]
TINY += ["--compute", "float32", "--batch-tokens", "96", "--held-out", "0.2", "--learning-rate", "3e-3"]
EPOCHS = ["--epochs", "8"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("tiny"), draft=False, sharp=9.0)


@pytest.fixture(scope="module")
def trained(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("made") / "draft"
    assert main(["train", "--model", str(bundle), "--output-dir", str(output), *EPOCHS, *TINY]) == 0
    return output


def entries(output: Path, what: str) -> list[dict[str, object]]:
    file = output / "training" / "log.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    return [entry for line in lines if line.endswith("}") and (entry := json.loads(line))["what"] == what]


def tau(measurement: dict[str, object]) -> float:
    return measurement["rounds"]["tokens"] / measurement["rounds"]["rounds"]


def test_from_nothing_to_a_draft(trained: Path, bundle: Path) -> None:
    updates = entries(trained, "update")
    first, last = updates[:5], updates[-5:]
    assert sum(u["losses"][0] for u in last) < 0.9 * sum(u["losses"][0] for u in first)
    measured = entries(trained, "measurement")
    assert tau(measured[-1]) > tau(measured[0])
    source = open_draft(trained, open_bundle(bundle).manifest.target)
    assert source.config.draft_vocab_size == 96
    assert source.config.taps == (0, 2, 3)
    text = (trained / "README.md").read_text()
    assert "It drafts for tiny" in text and f"tau {tau(measured[-1]):.3f}" in (trained / "training.svg").read_text()
    assert f"{updates[-1]['number']} updates, 8.0 epochs" in text
    assert (trained / "training.svg").read_text().count("<polyline") == 6


def test_what_it_needs_is_said_before(
    bundle: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = trained / "training" / "data.jsonl"
    flags = ["--model", str(bundle), "--output-dir", str(tmp_path / "d"), "--data", str(data), "--epochs", "1", *TINY]
    assert main(["train", *flags]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[-1] == str(tmp_path / "d")
    lines = told.err.splitlines()
    needs = next(i for i, line in enumerate(lines) if "GiB on disk" in line and "of memory" in line)
    assert needs < next(i for i, line in enumerate(lines) if "held out: tau" in line)
    assert "covers" in told.err


def test_a_killed_run_goes_on_with_the_same_curve(bundle: Path, trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "draft"
    flags = ["train", "--model", str(bundle), "--output-dir", str(output), *EPOCHS, *TINY, "--checkpoint-seconds", "0"]
    running = subprocess.Popen([sys.executable, "-m", "eagle3chat", *flags], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while len(entries(output, "update")) < 8 and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    reached = len(entries(output, "update"))
    whole = entries(trained, "update")
    assert 8 <= reached < len(whole)
    assert not (output / "README.md").exists()
    assert main(flags) == 0
    curve = {u["number"]: u["losses"] for u in entries(output, "update")}
    assert list(curve) == [u["number"] for u in whole]
    for update in whole:
        assert curve[update["number"]] == pytest.approx(update["losses"], rel=2e-3), update["number"]
    assert (output / "README.md").exists()


def test_a_draft_to_begin_as(bundle: Path, trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "more"
    data = trained / "training" / "data.jsonl"
    flags = ["--model", str(bundle), "--output-dir", str(output), "--from", str(trained), "--data", str(data), *TINY]
    assert main(["train", *flags, "--epochs", "1", "--few-bits", "0.5"]) == 0
    # From the bfloat16 file the very first measurement is about where the first run ended.
    assert tau(entries(output, "measurement")[0]) == pytest.approx(tau(entries(trained, "measurement")[-1]), abs=0.1)
    text = (output / "README.md").read_text()
    assert "Begun as the draft draft" in text and "In its last 50% head and MLP" in text


def renamed(bundle: Path, directory: Path, name: str) -> Path:
    copy = Path(shutil.copytree(bundle, directory / name))
    manifest = json.loads((copy / "bundle.json").read_text())
    (copy / "bundle.json").write_text(json.dumps(manifest | {"name": name}))
    return copy


def test_a_draft_of_another_target_is_refused_by_name(
    bundle: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = renamed(bundle, tmp_path, "other")
    flags = ["--model", str(other), "--output-dir", str(tmp_path / "d"), "--from", str(trained)]
    assert main(["train", *flags, *EPOCHS, *TINY]) == 2
    assert "The draft draft was trained for 'tiny', not for 'other'." in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_a_directory_of_another_run_is_refused(
    bundle: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "model.safetensors").read_bytes()
    other = renamed(bundle, tmp_path, "other")
    assert main(["train", "--model", str(other), "--output-dir", str(trained), *EPOCHS, *TINY]) == 2
    assert "holds a run for the target 'tiny', not for 'other'" in capsys.readouterr().err
    assert main(["train", "--model", str(bundle), "--output-dir", str(trained), *EPOCHS, *TINY, "--depth", "2"]) == 2
    assert "holds a run with another 'recipe'" in capsys.readouterr().err
    assert (trained / "model.safetensors").read_bytes() == before


def test_a_finished_run_is_found_finished(bundle: Path, trained: Path) -> None:
    count = len(entries(trained, "update"))
    weights = (trained / "model.safetensors").read_bytes()
    assert main(["train", "--model", str(bundle), "--output-dir", str(trained), *EPOCHS, *TINY]) == 0
    assert len(entries(trained, "update")) == count
    assert (trained / "model.safetensors").read_bytes() == weights


def test_prompts_are_answered_and_a_cut_file_is_continued(bundle: Path, tmp_path: Path) -> None:
    asked = tmp_path / "prompts.jsonl"
    asked.write_text("\n".join(json.dumps({"prompt": f"tell {i}", "kind": "tell"}) for i in range(5)))
    made, again = tmp_path / "made.jsonl", tmp_path / "again.jsonl"
    flags = ["train", "data", "--model", str(bundle), "--data", str(asked), "--max-new-tokens", "12"]
    assert main([*flags, "--output", str(made)]) == 0
    lines = [json.loads(line) for line in made.read_text().splitlines()]
    assert [line["prompt"] for line in lines] == [f"tell {i}" for i in range(5)]
    assert [line["temperature"] for line in lines] == [0.0, 0.7, 1.0, 0.0, 0.7]
    assert all(1 <= len(line["reply_ids"]) <= 12 and line["source"] == "tell" for line in lines)
    again.write_text(made.read_text()[: made.read_text().index("tell 3") + 30])
    assert main([*flags, "--output", str(again)]) == 0
    assert again.read_text() == made.read_text()


def test_the_target_writes_prompts_none_twice_and_goes_on_alike(bundle: Path, tmp_path: Path) -> None:
    made, again = tmp_path / "made.jsonl", tmp_path / "again.jsonl"
    flags = ["train", "data", "--model", str(bundle), "--conversations", "6", "--max-new-tokens", "8", "--seed", "3"]
    assert main([*flags, "--output", str(made)]) == 0
    lines = made.read_text().splitlines(keepends=True)
    prompts = [json.loads(line)["prompt"] for line in lines]
    assert len({" ".join(prompt.lower().split()) for prompt in prompts}) == 6
    again.write_text("".join(lines[:2]) + lines[2][:15])
    assert main([*flags, "--output", str(again)]) == 0
    assert again.read_text() == made.read_text()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "output directory is missing"),
        (["--output-dir", "x", "--held-out", "1"], "held-out share"),
        (["--output-dir", "x", "--vocabulary", "3"], "too small"),
        (["--output-dir", "x", "--epochs", "0"], "above 0"),
        (["--output-dir", "x", "--until", "25:00"], "not a time of day"),
        (["--output-dir", "x", "--depth", "0"], "0 steps"),
        (["--output-dir", "x", "--target", "none.gguf"], "not allowed with"),
        (["--output-dir", "x", "--data", "none.jsonl"], "cannot be read"),
    ],
)
def test_what_is_out_of_range_is_told(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--model", str(bundle), *flags]) == 2
    assert words in capsys.readouterr().err
    assert not os.listdir(tmp_path)


def test_from_a_gguf_file_to_a_bundle_that_speculates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "model.gguf"
    tiny_gguf(target, keys={"tokenizer.chat_template": "{% for m in messages %}a 1 2{{ m.content }}{% endfor %}b a"})
    draft, bundle = tmp_path / "draft", tmp_path / "bundle"
    assert main(["train", "--target", str(target), "--output-dir", str(draft), "--epochs", "4", *TINY]) == 0
    names = ["export", "--target", str(target), "--draft", str(draft), "--output-dir", str(bundle)]
    assert main(names) == 0
    capsys.readouterr()
    assert (
        main(["bench", "--model", str(bundle), "--chains", "0,2", "--limit", "2", "--dtype", "float32", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["pair"]["draft"] == "draft"
    assert found["chains"][1]["same"] == 2
    assert found["chains"][1]["acceptance"][0] is not None  # a random target, hardly learned: judged is enough
