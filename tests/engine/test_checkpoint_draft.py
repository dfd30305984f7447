"""Drafts in the layouts of SpecForge and speculators, and everything that is refused by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from eagle3chat.engine.checkpoint import DraftSource, open_draft
from eagle3chat.engine.config import Rope, TargetConfig
from eagle3chat.engine.errors import BundleError, CheckpointError, Eagle3Error

TARGET = TargetConfig(
    family="llama",
    vocab_size=48,
    hidden_size=32,
    intermediate_size=64,
    num_layers=12,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    rms_eps=1e-5,
    rope=Rope(),
    max_position=128,
    tie_embeddings=True,
)
WIDTH, INNER, DRAFT_VOCAB = 32, 64, 20
IDS = np.array([0, 1, 2, 4, 5, *range(20, 35)], np.int64)
SPARSE = np.array([*range(0, 12, 1), *range(13, 29, 2)], np.int64)  # 20 ids; with their places added still below 48
FLAT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000.0,
    "vocab_size": 48,
    "draft_vocab_size": DRAFT_VOCAB,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True},
}
NESTED: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "x"}},
    "speculators_version": "0.3",
    "draft_vocab_size": DRAFT_VOCAB,
    "target_hidden_size": WIDTH,
    "norm_before_residual": True,
    "norm_before_fc": False,
    "eagle_aux_hidden_state_layer_ids": [1, 6, 9],
    "embed_requires_grad": False,
    "transformer_layer_config": {
        "model_type": "llama",
        "vocab_size": 48,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "top_k": 50,
        "rope_parameters": {"rope_type": "default", "rope_theta": 7000.0},
        "rope_theta": 1.0,
    },
}
Tensors = dict[str, npt.NDArray[Any]]


def _tensors(layer: str = "midlayer.", prefix: str = "") -> Tensors:
    rng = np.random.default_rng(0)
    shapes = {
        "fc.weight": (WIDTH, 3 * WIDTH),
        f"{layer}self_attn.q_proj.weight": (32, 2 * WIDTH),
        f"{layer}self_attn.k_proj.weight": (16, 2 * WIDTH),
        f"{layer}self_attn.v_proj.weight": (16, 2 * WIDTH),
        f"{layer}self_attn.o_proj.weight": (WIDTH, 32),
        f"{layer}input_layernorm.weight": (WIDTH,),
        f"{layer}hidden_norm.weight": (WIDTH,),
        f"{layer}post_attention_layernorm.weight": (WIDTH,),
        f"{layer}mlp.gate_proj.weight": (INNER, WIDTH),
        f"{layer}mlp.up_proj.weight": (INNER, WIDTH),
        f"{layer}mlp.down_proj.weight": (WIDTH, INNER),
        "norm.weight": (WIDTH,),
        "lm_head.weight": (DRAFT_VOCAB, WIDTH),
    }
    tensors: Tensors = {prefix + n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    tensors["d2t"] = IDS - np.arange(DRAFT_VOCAB)
    tensors["t2d"] = np.isin(np.arange(48), IDS)
    return tensors


def _write(path: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")
    return path


def _read(source: DraftSource, name: str, dtype: str = "<f4") -> npt.NDArray[Any]:
    tensor = next(t for t in source.tensors if t.name == name)
    return np.frombuffer(tensor.read(), dtype).reshape(tensor.shape)


def test_specforge(tmp_path: Path) -> None:
    tensors = _tensors()
    source = open_draft(_write(tmp_path / "draft", FLAT, tensors), TARGET)
    config = source.config
    assert source.name == "draft"
    assert config.taps == (2, 6, 9)  # outputs of layers 1, 5, 8
    assert config.rope == Rope(theta=5000.0)
    assert (config.head_dim, config.own_embedding, config.own_head, config.norm_before_residual) == (
        16,
        False,
        True,
        False,
    )
    assert np.array_equal(_read(source, "target_ids", "<i8"), IDS)
    for letter in "qkvo":
        mine = _read(source, f"layers.0.self_attn.{letter}_proj.weight")
        assert np.array_equal(mine, tensors[f"midlayer.self_attn.{letter}_proj.weight"])
    assert {t.name for t in source.tensors} >= {"fc.weight", "lm_head.weight", "layers.0.hidden_norm.weight"}
    assert not {"d2t", "t2d"} & {t.name for t in source.tensors}
    assert [file.name for file in source.files] == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("prefix", ["", "model.", "draft_model."])
def test_speculators(tmp_path: Path, prefix: str) -> None:
    tensors = _tensors("layers.0.", prefix)
    tensors["embed_tokens.weight"] = np.zeros((48, WIDTH), np.float32)
    tensors["verifier_lm_head.weight"] = np.zeros((48, WIDTH), np.float32)
    source = open_draft(_write(tmp_path / "draft", NESTED, tensors), TARGET)
    assert source.config.taps == (1, 6, 9)  # boundaries as they are
    assert source.config.rope == Rope(theta=7000.0)
    assert source.config.norm_before_residual
    assert not source.config.own_embedding  # it was frozen: the target's rows are the same
    assert not any("embed" in t.name or "verifier" in t.name for t in source.tensors)


@pytest.mark.parametrize(("trained", "wanted", "own"), [(True, None, True), (False, True, True), (True, False, False)])
def test_an_own_embedding_when_trained_or_wanted(tmp_path: Path, trained: bool, wanted: bool | None, own: bool) -> None:
    tensors = _tensors("layers.0.") | {"embed_tokens.weight": np.ones((48, WIDTH), np.float32)}
    path = _write(tmp_path / "draft", NESTED | {"embed_requires_grad": trained}, tensors)
    source = open_draft(path, TARGET, own_embedding=wanted)
    assert source.config.own_embedding is own
    assert any(t.name == "embed_tokens.weight" for t in source.tensors) is own


@pytest.mark.parametrize(
    ("change", "taps"),
    [
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]}}, (2, 6, 9)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 11]}}, (2, 6, 12)),
        ({"eagle_config": None, "eagle_aux_hidden_state_layer_ids": [1, 5, 8]}, (1, 5, 8)),
        ({"eagle_config": None}, (2, 6, 9)),
        ({"eagle_aux_hidden_state_layer_ids": [0, 6, 12]}, (0, 6, 12)),
    ],
)
def test_tap_dialects(tmp_path: Path, change: dict[str, Any], taps: tuple[int, ...]) -> None:
    assert open_draft(_write(tmp_path / "d", FLAT | change, _tensors()), TARGET).config.taps == taps


@pytest.mark.parametrize(
    ("top", "layer", "theta"),
    [
        ({}, {}, 10000.0),
        ({"rope_theta": 4.0}, {}, 4.0),
        ({"rope_theta": 4.0, "rope_scaling": {"rope_type": "default", "rope_theta": 3.0}}, {}, 3.0),
        ({"rope_theta": 4.0, "rope_scaling": {"rope_theta": 3.0}, "rope_parameters": {"rope_theta": 2.0}}, {}, 2.0),
        (
            {"rope_theta": 4.0, "rope_scaling": {"rope_theta": 3.0}, "rope_parameters": {"rope_type": "default"}},
            {},
            3.0,
        ),
        ({"rope_theta": 4.0, "rope_parameters": {"rope_type": "default"}}, {}, 4.0),
        ({"rope_parameters": {"rope_theta": 2.0}}, {"rope_theta": 5.0}, 5.0),  # the layer's come first, all of them
        ({"rope_theta": 4.0}, {"rope_parameters": {"rope_theta": 6.0}}, 6.0),
    ],
)
def test_where_the_base_of_the_positions_comes_from(
    tmp_path: Path, top: dict[str, Any], layer: dict[str, Any], theta: float
) -> None:
    inner = {key: value for key, value in NESTED["transformer_layer_config"].items() if "rope" not in key} | layer
    path = _write(tmp_path / "d", NESTED | top | {"transformer_layer_config": inner}, _tensors("layers.0."))
    assert open_draft(path, TARGET).config.rope == Rope(theta=theta)


def test_taps_by_argument_are_boundaries(tmp_path: Path) -> None:
    assert open_draft(_write(tmp_path / "d", FLAT, _tensors()), TARGET, taps=[1, 5, 8]).config.taps == (1, 5, 8)


def test_the_same_vocabulary_needs_no_d2t(tmp_path: Path) -> None:
    tensors = {n: t for n, t in _tensors().items() if n not in ("d2t", "t2d")}
    tensors["lm_head.weight"] = np.zeros((48, WIDTH), np.float32)
    config = FLAT | {"draft_vocab_size": 48}
    source = open_draft(_write(tmp_path / "d", config, tensors), TARGET)
    assert _read(source, "target_ids", "<i8").tolist() == list(range(48))
    tensors["d2t"] = np.zeros(48, np.int64)  # all zero says the same
    source = open_draft(_write(tmp_path / "d", config, tensors), TARGET)
    assert _read(source, "target_ids", "<i8").tolist() == list(range(48))
    del tensors["lm_head.weight"]  # then the target's head fits too
    assert not open_draft(_write(tmp_path / "d", config, tensors), TARGET).config.own_head


def test_norm_flags_with_their_weights(tmp_path: Path) -> None:
    tensors = _tensors() | {f"fc_norm.{i}.weight": np.ones(WIDTH, np.float32) for i in range(3)}
    config = open_draft(_write(tmp_path / "d", FLAT | {"fc_norm": True, "norm_output": True}, tensors), TARGET).config
    assert (config.fc_norm, config.norm_output, config.norm_before_fc) == (True, True, False)
    tensors = _tensors() | {"input_norm.weight": np.ones(3 * WIDTH, np.float32)}
    assert open_draft(_write(tmp_path / "d", FLAT | {"norm_before_fc": True}, tensors), TARGET).config.norm_before_fc


def test_qk_norm_is_in_the_weights(tmp_path: Path) -> None:
    tensors = _tensors() | {f"midlayer.self_attn.{n}_norm.weight": np.ones(16, np.float32) for n in "qk"}
    assert open_draft(_write(tmp_path / "d", FLAT, tensors), TARGET).config.qk_norm


def _eagle(**switches: Any) -> dict[str, Any]:
    """FLAT's eagle_config with more in it."""
    return {"eagle_config": FLAT["eagle_config"] | switches}


def _adds(name: str, width: int) -> Any:
    """One tensor more."""
    return lambda tensors: tensors.update({name: np.ones(width, np.float32)})


def _two_norms(tensors: Tensors) -> None:
    tensors["additional_layers.0.hidden_norm.weight"] = tensors["layers.1.input_layernorm.weight"] = np.ones(32)


BAD: list[tuple[str, dict[str, Any], Any, str]] = [
    ("absolute", {}, lambda t: t.update(d2t=IDS), r"offsets to ascending target ids \(it seems to hold the ids them"),
    (
        "absolute within the vocabulary",
        {},
        lambda t: (t.pop("t2d"), t.update(d2t=SPARSE)),
        r"d2t rises from each token to the next, so it seems to hold the ids themselves",
    ),
    (
        "absolute beside a mask",
        {},
        lambda t: t.update(d2t=SPARSE, t2d=np.isin(np.arange(48), SPARSE)),
        r"d2t and t2d name different tokens \(d2t seems to hold the ids themselves\)",
    ),
    ("all zero", {}, lambda t: (t.pop("t2d"), t.update(d2t=0 * t["d2t"])), r"d2t is all zero, so its 20 tokens"),
    ("all zero beside a mask", {}, lambda t: t.update(d2t=0 * t["d2t"]), r"d2t and t2d name different tokens\."),
    ("unsorted", {}, lambda t: t.update(d2t=t["d2t"][::-1].copy()), r"does not hold offsets to ascending target ids\."),
    ("repeated", {}, lambda t: t["d2t"].__setitem__(4, t["d2t"][3] - 1), r"does not hold offsets"),
    ("too high", {}, lambda t: t.update(d2t=t["d2t"] + 20), r"does not hold offsets"),
    ("negative", {}, lambda t: t.update(d2t=t["d2t"] - 1), r"does not hold offsets"),
    ("d2t shape", {}, lambda t: t.update(d2t=t["d2t"][:5]), r"d2t is I64 \[5\], not I64 \[20\]"),
    ("d2t type", {}, lambda t: t.update(d2t=t["d2t"].astype(np.float32)), r"d2t is F32 \[20\]"),
    ("no d2t", {}, lambda t: t.pop("d2t"), r"d2t is missing, and 20 draft tokens are not all 48"),
    ("mask", {}, lambda t: t.update(t2d=np.roll(t["t2d"], 1)), r"d2t and t2d name different tokens"),
    ("mask length", {}, lambda t: t.update(t2d=np.ones(50, bool)), r"t2d has \[50\] places, the target 48 tokens"),
    ("no head", {}, lambda t: t.pop("lm_head.weight"), r"lm_head\.weight is missing"),
    (
        "unknown weight",
        {},
        lambda t: t.update({"input_norm.weight": np.ones(96, np.float32)}),
        r"input_norm\.weight is not",
    ),
    ("second layer", {}, lambda t: t.update({"layers.1.x": np.ones(2, np.float32)}), r"layers\.1\.x is not known"),
    ("lost weight", {}, lambda t: t.pop("midlayer.hidden_norm.weight"), r"layers\.0\.hidden_norm\.weight is missing"),
    (
        "twice",
        {},
        lambda t: t.update({"layers.0.hidden_norm.weight": np.ones(32, np.float32)}),
        r"two tensors are called",
    ),
    (
        "fc",
        {},
        lambda t: t.update({"fc.weight": np.ones((32, 64), np.float32)}),
        r"fc\.weight reads 2 taps, and there are 3",
    ),
    ("fc width", {}, _adds("fc.weight", 32), r"fc\.weight has the shape \[32\], not \[32, 96\]"),
    ("flag alone", {"fc_norm": True}, None, r"the tensor fc_norm\.0\.weight is missing"),
    ("both norms", {"fc_norm": True, "norm_before_fc": True}, None, r"exclude each other"),
    ("unknown flag", {"logit_cap": True}, None, r"the setting logit_cap = True is not known"),
    ("unknown number", {"logit_scale": 0.5}, None, r"the setting logit_scale = 0\.5 is not known"),
    ("parallel", {"parallel_drafting": True}, None, r"parallel_drafting = True says that it is .* \(P-EAGLE\)"),
    ("mask token", {"mask_token_id": 7}, None, r"mask_token_id = 7 says that it is or has a parallel draft"),
    ("latent", {"kv_lora_rank": 512}, None, r"kv_lora_rank = 512 says that it is or has latent attention \(MLA\)"),
    ("latent decoder", _eagle(eagle_decoder_type="kimik2"), None, r"eagle_decoder_type is 'kimik2'"),
    ("steps", _eagle(parallel_draft_step=4), None, r"parallel_draft_step is 4: it is a parallel draft"),
    ("no last norm", _eagle(use_last_layernorm=False), None, r"use_last_layernorm is False, and only True is known"),
    ("wide layers", {"next_layer_regular": False}, None, r"next_layer_regular is False"),
    ("unknown switch", _eagle(gated_fc=True), None, r"the setting eagle_config\.gated_fc = True is not known"),
    ("no object", {"eagle_config": [1]}, None, r"eagle_config is not an object"),
    (
        "sliding layers",
        {"layer_types": ["sliding_attention"]},
        None,
        r"layer_types \['sliding_attention'\] are not all",
    ),
    ("sliding", {"use_sliding_window": True}, None, r"use_sliding_window is not known for drafts"),
    ("tap count", {"num_aux_hidden_states": 4}, None, r"num_aux_hidden_states is 4, and there are 3 taps"),
    ("bias", {"bias": True}, None, r"the tensor fc\.bias is missing"),
    ("attention_bias", {"attention_bias": True}, None, r"the tensor layers\.0\.self_attn\.q_proj\.bias is missing"),
    ("mlp_bias", {"mlp_bias": True}, None, r"the tensor layers\.0\.mlp\.gate_proj\.bias is missing"),
    ("half a bias", {}, _adds("midlayer.self_attn.v_proj.bias", 16), r"self_attn\.q_proj\.bias is missing"),
    ("half a norm", {}, _adds("midlayer.self_attn.k_norm.weight", 16), r"self_attn\.q_norm\.weight is missing"),
    ("norm_before_fc alone", _eagle(norm_before_fc=True), None, r"the tensor input_norm\.weight is missing"),
    ("fc_norm alone", {}, _adds("fc_norm.0.weight", 32), r"fc_norm\.0\.weight is not known"),
    (
        "adapter",
        {},
        _adds("midlayer.self_attn.q_proj.lora_A.weight", 2),
        r"lora_A\.weight is part of an adapter \(LoRA\)",
    ),
    ("parallel part", {}, _adds("mask_hidden", 32), r"mask_hidden is part of a parallel draft \(P-EAGLE\)"),
    (
        "latent part",
        {},
        _adds("midlayer.self_attn.kv_a_proj_with_mqa.weight", 8),
        r"is part of latent attention \(MLA\)",
    ),
    ("quantised part", {}, _adds("midlayer.mlp.up_proj.weight_scale", 8), r"weight_scale is part of a quantised draft"),
    ("experts", {}, _adds("midlayer.mlp.experts.0.up_proj.weight", 8), r"is part of a mixture of experts"),
    (
        "later norm twice",
        {"num_hidden_layers": 2},
        _two_norms,
        r"two tensors are called layers\.1\.input_layernorm\.weight",
    ),
    ("window", {"sliding_window": 4096}, None, r"the setting sliding_window = 4096"),
    ("act", {"hidden_act": "gelu"}, None, r"hidden_act 'gelu'"),
    ("layers", {"num_hidden_layers": 2}, None, r"layers\.1\.self_attn\.q_proj\.weight is missing"),
    ("model type", {"model_type": "kimi_k2"}, None, r"model type 'kimi_k2' is not known"),
    ("kind", {"speculators_model_type": "peagle"}, None, r"it is a parallel draft \(P-EAGLE\)"),
    ("no taps used", {"eagle_config": {"use_aux_hidden_state": False}}, None, r"use_aux_hidden_state is false"),
    ("rope", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, None, r"the rope kind 'dynamic'"),
    ("width", {"target_hidden_size": 64}, None, r"is for a target of width 64, not 32"),
    ("vocab", {"vocab_size": 50}, None, r"is for a vocabulary of 50 tokens, the target has 48"),
    (
        "tap high",
        {"eagle_aux_hidden_state_layer_ids": [1, 5, 13]},
        None,
        r"the tap 13 lies outside the target's 12 layers",
    ),
    (
        "tap order",
        {"eagle_aux_hidden_state_layer_ids": [5, 1, 8]},
        None,
        r"taps \[5, 1, 8\] are not in ascending order",
    ),
    ("tap bool", {"eagle_aux_hidden_state_layer_ids": [True, 5, 8]}, None, r"are not layer numbers"),
    ("no width", {"hidden_size": None}, None, r"hidden_size is None, not a whole number above 0"),
]


@pytest.mark.parametrize(("config", "change", "what"), [c[1:] for c in BAD], ids=[c[0] for c in BAD])
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, config: dict[str, Any], change: Any, what: str) -> None:
    tensors = _tensors()
    if change is not None:
        change(tensors)
    path = _write(tmp_path / "draft", FLAT | config, tensors)
    with pytest.raises(Eagle3Error, match=what) as caught:
        open_draft(path, TARGET)
    assert "draft" in caught.value.message
    assert caught.value.fix


def test_a_mask_confirms_what_looks_doubtful(tmp_path: Path) -> None:
    ids = np.arange(0, 40, 2)  # no two neighbours, so the offsets rise all the way
    tensors = _tensors() | {"d2t": ids - np.arange(20), "t2d": np.isin(np.arange(48), ids)}
    assert (
        _read(open_draft(_write(tmp_path / "a", FLAT, tensors), TARGET), "target_ids", "<i8").tolist() == ids.tolist()
    )
    tensors = _tensors() | {"d2t": np.zeros(20, np.int64), "t2d": np.arange(48) < 20}
    assert _read(open_draft(_write(tmp_path / "b", FLAT, tensors), TARGET), "target_ids", "<i8").tolist() == [
        *range(20)
    ]


def test_a_tied_head_needs_a_tied_target(tmp_path: Path) -> None:
    config = FLAT | {"draft_vocab_size": 48, "tie_word_embeddings": True}
    path = _write(
        tmp_path / "d", config, {n: t for n, t in _tensors().items() if n not in ("d2t", "t2d", "lm_head.weight")}
    )
    assert not open_draft(path, TARGET).config.own_head
    with pytest.raises(CheckpointError, match=r"d: lm_head\.weight is missing and tied to the target's embedding"):
        open_draft(path, dataclasses.replace(TARGET, tie_embeddings=False))


def test_an_adapter_and_nothing(tmp_path: Path) -> None:
    path = tmp_path / "draft"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(FLAT))
    with pytest.raises(BundleError, match=r"model\.safetensors: is missing"):
        open_draft(path, TARGET)
    _write(path, FLAT, _tensors())
    save_file({"x": np.ones(1)}, path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="is part of an adapter"):
        open_draft(path, TARGET)
    with pytest.raises(CheckpointError, match="is not a directory"):
        open_draft(tmp_path / "nothing", TARGET)
