"""`bench --peer`: llama.cpp beside a pair, its draft's file, and its figures. A script stands for its programs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_peer import fake_peer
from gguf import GGUFReader
from ggufs import tiny_gguf
from quantised_dirs import hf_directory
from safetensors.numpy import load_file, save_file
from tiny import tiny_bundle

from eagle3chat.bench import Case
from eagle3chat.cli import main
from eagle3chat.engine.bundle import open_bundle, read_tensors
from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.recoding import Changes
from eagle3chat.peer_gguf import file_type, unknown_part, write_draft
from eagle3chat.peer_server import PeerReply
from eagle3chat.peer_summary import PeerRun, summarise


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))


def gguf(path: Path) -> Path:
    tiny_gguf(path)
    return path


def asked(directory: Path) -> list[tuple[int, Any]]:
    """What the script was called with and asked, with the process."""
    text = (directory / "build/bin/asked.jsonl").read_text(encoding="utf-8")
    return [(pid, what) for pid, what in (json.loads(line) for line in text.splitlines())]


def test_the_peer_decodes_each_prompt_after_our_chains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peer, target = fake_peer(tmp_path / "llama"), gguf(tmp_path / "t.gguf")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "prompt": "One"}\n{"id": "b", "prompt": "Two"}\n')
    argv = ["bench", "--model", str(tiny_bundle(tmp_path)), "--prompts", str(prompts), "--max-new-tokens", "5"]
    argv += ["--chains", "0,2", "--backend", "torch", "--dtype", "float32", "--threads", "1"]
    assert main([*argv, "--peer", f"llama.cpp={peer}", "--peer-target", str(target)]) == 0
    out = capsys.readouterr().out.splitlines()
    document = json.loads(out[-1])["peer"]
    assert document["version"] == "0.5.0 (build 7, commit abc)"
    assert (document["target"], document["draft"], document["threads"]) == ("t.gguf", "draft.gguf", 1)
    plain, drafted = document["chains"]
    assert (plain["chain"], plain["runs"], plain["tokens"], plain["tau"]) == (0, 2, 10, None)
    assert (plain["tokens_per_second"], drafted["tokens_per_second"]) == (100.0, 200.0)  # the first token costs nothing
    assert (drafted["chain"], drafted["drafted"], drafted["accepted"], drafted["tau"]) == (2, 24, 6, 4.0)
    ours = json.loads(out[-1])["chains"][0]["tokens_per_second"]
    assert document["ratios"][0] == {"chain": "0", "to_plain_peer": pytest.approx(ours / 100.0, rel=1e-4)}
    assert any(f"plain {ours / 100.0:.2f}x" in line for line in out)
    calls = asked(peer)
    started = [what for _, what in calls if isinstance(what, list)]
    assert ["-md" in argv for argv in started] == [False, True]
    assert all(argv[argv.index("--host") + 1] == "127.0.0.1" and argv[argv.index("-t") + 1] == "1" for argv in started)
    bodies = [what for _, what in calls if isinstance(what, dict)]
    assert [body["n_predict"] for body in bodies] == [8, 8, 5, 5, 5, 5]  # warm-ups, then both on each prompt
    assert bodies[2]["prompt"] == bodies[3]["prompt"] != bodies[4]["prompt"]
    assert all(body["temperature"] == 0 and not body["cache_prompt"] for body in bodies)
    for pid in {pid for pid, _ in calls}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--peer", "vllm=/x"], "No peer is called vllm=/x. Use --peer llama.cpp=PATH"),
        (["--peer", "llama.cpp"], "No peer is called llama.cpp."),
        (["--peer", "llama.cpp=/nowhere"], "There is no llama-server at /nowhere."),
        (["--peer", "llama.cpp=."], "There is no llama-server at ."),
        (["--peer-draft", "d.gguf"], "--peer-target and --peer-draft are about a peer."),
        (["--peer", "llama.cpp=.", "--temperature", "0.5"], "A peer is compared on greedy texts."),
        (["--peer", "llama.cpp=.", "--peer-target", "none.gguf"], "There is no file none.gguf."),
        (["--peer", "llama.cpp=.", "--contexts", "8"], "A peer is measured beside the chains of a local pair."),
        (["--peer", "llama.cpp=.", "--server", "http://h"], "A peer is measured beside the chains of a local pair."),
    ],
)
def test_what_cannot_be_a_peer(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--backend", "scripted", *argv]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_another_program_of_that_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = fake_peer(tmp_path / "other", version="llama 3") / "build/bin/llama-server"
    assert main(["bench", "--backend", "scripted", "--peer", f"llama.cpp={other}"]) == 2
    assert "does not say that it is llama.cpp's server." in capsys.readouterr().err
    other.chmod(0o600)
    (other.parent / "not-runnable").write_bytes(b"")
    assert main(["bench", "--backend", "scripted", "--peer", f"llama.cpp={other.parent / 'not-runnable'}"]) == 2
    assert "cannot be run." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"kinds": "draft-simple"}, "(0.5.0 (build 7, commit abc)) knows no EAGLE-3 drafts."),
        ({"dies": True}, "llama-server ended with code 1: error: invalid argument: this one."),
        ({"refuses": True}, "llama-server refuses a prompt with status 400: too long."),
    ],
)
def test_a_peer_that_fails(
    faults: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer, target = fake_peer(tmp_path / "llama", **faults), gguf(tmp_path / "t.gguf")
    argv = ["bench", "--model", str(tiny_bundle(tmp_path)), "--limit", "1", "--chains", "0,2", "--backend", "torch"]
    assert main([*argv, "--peer", f"llama.cpp={peer}", "--peer-target", str(target), "--max-new-tokens", "3"]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and not captured.out
    asking = peer / "build/bin/asked.jsonl"
    for pid in {pid for pid, _ in asked(peer)} if asking.exists() else set():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_target_must_be_named_where_it_is_not_the_built_in_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "--model", str(tiny_bundle(tmp_path)), "--limit", "1", "--backend", "torch"]
    assert main([*argv, "--peer", f"llama.cpp={fake_peer(tmp_path / 'llama')}"]) == 2
    assert "--peer-target FILE.gguf" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_the_drafts_file_has_the_bundles_weights(dtype: Any, tmp_path: Path) -> None:
    vocabulary = gguf(tmp_path / "t.gguf")
    bundle = open_bundle(tiny_bundle(tmp_path, dtype=dtype, own_embedding=True, norm_before_residual=True))
    file = write_draft(bundle, vocabulary, tmp_path / "d.gguf")
    reader, draft = GGUFReader(file), bundle.manifest.draft
    assert draft is not None
    keys = {field.name: field.contents() for field in reader.fields.values()}
    assert (keys["general.architecture"], keys["eagle3.target_layers"]) == ("eagle3", [1, 2, 3])
    assert keys["eagle3.norm_before_residual"] is True
    assert keys["eagle3.rope.freq_base"] == draft.rope.theta
    assert keys["tokenizer.ggml.tokens"] == GGUFReader(vocabulary).get_field("tokenizer.ggml.tokens").contents()
    written = {tensor.name: tensor for tensor in reader.tensors}
    stored = read_tensors(bundle.path / "draft")
    assert written["d2t"].data.tolist() == np.frombuffer(stored["target_ids"].read(), np.int64).tolist()
    queries = as_float(stored["layers.0.self_attn.q_proj.weight"])
    # As llama.cpp's converter orders them: pairs of a rotary dimension beside each other.
    halves = queries.reshape(draft.num_heads, 2, draft.head_dim // 2, -1).swapaxes(1, 2).reshape(queries.shape)
    assert np.array_equal(
        of_gguf(written["blk.0.attn_q.weight"]), halves.astype(np.float16 if dtype == "F32" else np.float32)
    )
    for own, name in (("layers.0.mlp.down_proj", "blk.0.ffn_down"), ("embed_tokens", "token_embd"), ("fc", "fc")):
        values = as_float(stored[f"{own}.weight"])
        assert np.allclose(of_gguf(written[f"{name}.weight"]), values, rtol=1e-3, atol=1e-6), own
    assert written["output_norm.weight"].data.dtype == np.float32
    assert file_type(file) == ("F16" if dtype == "F32" else "BF16")
    assert len(written) == 15


def test_a_quantised_draft_is_written_with_the_values_that_its_codes_stand_for(tmp_path: Path) -> None:
    dense = tiny_bundle(tmp_path, own_embedding=True)
    source = draft_of(dense, tmp_path / "draft")
    bundle = open_bundle(export_bundle(hf_directory(tmp_path), source, tmp_path / "4", changes=Changes(draft_bits=4)))
    assert bundle.manifest.draft_quantization is not None
    file = write_draft(bundle, gguf(tmp_path / "t.gguf"), tmp_path / "d.gguf")
    written = {tensor.name: tensor for tensor in GGUFReader(file).tensors}
    values = as_float(read_tensors(dense / "draft")["layers.0.mlp.down_proj.weight"])
    step = (values.max() - values.min()) / 15
    assert 0 < np.abs(of_gguf(written["blk.0.ffn_down.weight"]) - values).max() < step
    assert file_type(file) == "F16"


def draft_of(bundle: Path, path: Path) -> Path:
    """The bundle's draft as a directory for `export`."""
    tensors = load_file(bundle / "draft" / "model.safetensors")
    tensors["d2t"] = tensors.pop("target_ids") - np.arange(len(tensors["lm_head.weight"]))
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    values = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    values |= {"vocab_size": 320, "draft_vocab_size": len(tensors["d2t"])}
    taps = {"rms_norm_eps": 1e-5, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    (path / "config.json").write_text(json.dumps(values | taps))
    return path


def as_float(info: Any) -> Any:
    data = info.read()
    if info.dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(info.shape)
    return np.frombuffer(data, np.float32).reshape(info.shape)


def of_gguf(tensor: Any) -> Any:
    if tensor.tensor_type.name == "BF16":
        return (tensor.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return tensor.data


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"norm_output": True}, "no normed output fed back"),
        ({"taps": (1, 3)}, "no 2 taps"),
    ],
)
def test_drafts_that_the_peer_has_not(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    bundle = open_bundle(tiny_bundle(tmp_path, **options))
    with pytest.raises(SettingError, match=words):
        write_draft(bundle, gguf(tmp_path / "t.gguf"), tmp_path / "d.gguf")


def test_other_rotary_positions_are_not_written(tmp_path: Path) -> None:
    draft = open_bundle(tiny_bundle(tmp_path)).manifest.draft
    assert draft is not None and unknown_part(draft) == ""
    assert "of the kind linear" in unknown_part(replace(draft, rope=replace(draft.rope, kind="linear", factor=2.0)))
    assert unknown_part(replace(draft, num_layers=2)) == "more than one layer"
    assert unknown_part(replace(draft, mlp_bias=True)) == "biases"


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"nothing of the kind")
    with pytest.raises(SettingError, match="is not a GGUF file"):
        file_type(tmp_path / "x.gguf")


def test_figures_of_replies_of_one_token_and_of_equal_texts() -> None:
    case = Case("a", "k", "One")
    one, two = PeerReply((7,), 1, 1e-9, 0, 0), PeerReply((7, 8, 9), 4, 0.3, 6, 1)
    (summary,) = summarise([PeerRun(case, 2, one), PeerRun(case, 2, two)], [])
    assert (summary.tokens, summary.tokens_per_second, summary.same) == (5, pytest.approx(10.0), None)
    assert summary.tau == 1.5
