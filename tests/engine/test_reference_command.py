"""The reference's export command, word for word: a tiny Gemma-4-shaped HQQ-INT4 directory, a speculators draft."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import family_checkpoint
from quantised_dirs import as_hqq
from safetensors.numpy import save_file

from eagle3chat.cli import main
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.events import Round
from eagle3chat.engine.pair import open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import Session

COMMAND = """
    eagle3chat export --backend mlx --target-model gemma4_31b --target ./gemma-4-31B-it-HQQ-INT4 --draft "$SPEC"
    --output-dir ./eagle3_mlx --chain 3 --max-prefill 256 --quantize-draft --share-draft-embedding
"""
VOCAB, WIDTH = 320, 64


def speculators_draft(path: Path, embedding: np.ndarray[Any, Any]) -> None:
    """A draft as vLLM's speculators library writes it, with a copy of the target's embedding."""
    rng = np.random.default_rng(1)
    inner, heads, kv_heads, head, kept = 96, 4, 2, 16, 256

    def normal(*shape: int) -> np.ndarray[Any, Any]:
        return (rng.standard_normal(shape) * 0.5 * shape[-1] ** -0.5).astype(np.float32)

    ids = np.sort(rng.permutation(VOCAB)[:kept]).astype(np.int64)
    reachable = np.zeros(VOCAB, bool)
    reachable[ids] = True
    layer = {
        "self_attn.q_proj": normal(heads * head, 2 * WIDTH),
        "self_attn.k_proj": normal(kv_heads * head, 2 * WIDTH),
        "self_attn.v_proj": normal(kv_heads * head, 2 * WIDTH),
        "self_attn.o_proj": normal(WIDTH, heads * head),
        "mlp.gate_proj": normal(inner, WIDTH),
        "mlp.up_proj": normal(inner, WIDTH),
        "mlp.down_proj": normal(WIDTH, inner),
        "input_layernorm": np.ones(WIDTH, np.float32),
        "hidden_norm": np.ones(WIDTH, np.float32),
        "post_attention_layernorm": np.ones(WIDTH, np.float32),
    }
    tensors = {f"layers.0.{name}.weight": value for name, value in layer.items()}
    tensors |= {"fc.weight": normal(WIDTH, 3 * WIDTH), "norm.weight": np.ones(WIDTH, np.float32)}
    tensors |= {"lm_head.weight": normal(kept, WIDTH), "embed_tokens.weight": embedding.astype(np.float32)}
    tensors |= {"d2t": ids - np.arange(kept), "t2d": reachable}
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": kept,
        "norm_before_residual": True,
        "embed_requires_grad": False,
        "target_hidden_size": WIDTH,
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": WIDTH,
            "intermediate_size": inner,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "vocab_size": VOCAB,
            "num_hidden_layers": 1,
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "verifier": {"name_or_path": "google/gemma-4-31B-it", "architectures": ["Gemma4ForConditionalGeneration"]},
        },
    }
    (path / "config.json").write_text(json.dumps(config))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the target and the draft of the command in it; its own settings."""
    made = family_checkpoint(tmp_path, "gemma4", nested=True, changes={"tie_word_embeddings": False})
    target = made.rename(tmp_path / "gemma-4-31B-it-HQQ-INT4")
    (target / "chat_template.jinja").unlink()  # the published directory has none
    truth = as_hqq(target, prefix="model.language_model.")
    embedding = truth["model.language_model.embed_tokens.weight"]
    speculators_draft(tmp_path / "spec", embedding)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def argv() -> list[str]:
    return shlex.split(COMMAND.replace('"$SPEC"', "./spec"))[1:]


def test_word_for_word(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlx.core")
    assert main(argv()) == 0
    told = capsys.readouterr()
    assert told.out.strip() == "eagle3_mlx"
    assert "taps at boundaries 1, 3, 4" in told.err
    assert "9 matrices of the draft were quantised: relative error" in told.err
    manifest = open_bundle(place / "eagle3_mlx").manifest
    assert (manifest.family, manifest.template) == ("gemma4_text", "gemma4")
    assert (manifest.default_chain, manifest.max_prefill, manifest.min_prefill) == (3, 256, 1)
    assert manifest.extra == {"verifier": "google/gemma-4-31B-it"}
    assert manifest.draft is not None and not manifest.draft.own_embedding
    assert manifest.draft.draft_vocab_size == 256
    assert manifest.quantization is not None and manifest.quantization.bits == 4
    assert not manifest.target.tie_embeddings  # the file has a head of its own; the flag in its config is stale
    assert ("model.embed_tokens", 64, 8) in manifest.quantization.overrides
    assert manifest.draft_quantization is not None
    assert manifest.draft_quantization.overrides == (("lm_head", 32, 8),)
    assert manifest.command == (
        "eagle3chat export --backend mlx --target-model gemma4_31b --target gemma-4-31B-it-HQQ-INT4 --draft spec "
        "--output-dir eagle3_mlx --chain 3 --max-prefill 256 --quantize-draft --share-draft-embedding"
    )
    assert main(["info", "eagle3_mlx"]) == 0
    replies = [reply(place / "eagle3_mlx", backend) for backend in ("torch", "mlx")]
    assert replies[0] == replies[1] and len(replies[0]) == 16


def reply(path: Path, backend: str) -> list[int]:
    """Greedy ids in float32."""
    options = PairOptions(bundle=str(path), backend=backend, dtype="float32", device="cpu", threads=1, stop_ids=())
    pair = open_pair(options)
    try:
        say = Say((Message("user", "Tell me something."),), Controls(3, Sampling()), 16)
        rounds = [event for event in Session(pair).reply(say) if isinstance(event, Round)]
        return [token.id for round in rounds for token in round.tokens]
    finally:
        pair.backend.close()


def test_a_stale_copy_of_the_embedding_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.numpy import load_file

    tensors = load_file(place / "spec" / "model.safetensors")
    tensors["embed_tokens.weight"][::2] += 1.0
    save_file(tensors, place / "spec" / "model.safetensors")
    assert main(argv()) != 0
    assert "embed_tokens.weight differs from it in 32 of 64 rows" in capsys.readouterr().err
    assert not (place / "eagle3_mlx").exists()
