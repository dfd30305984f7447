"""Targets that other programs quantised: every value is kept, and what has no exact form is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_dirs import Truth, as_awq, as_compressed, as_gptq, as_hqq, drop_part, hf_directory
from safetensors.numpy import load_file, save_file

from eagle3chat.engine.affine import NotExactError
from eagle3chat.engine.affine_source import Codes, Converted, product, stored
from eagle3chat.engine.checkpoint import TargetSource, open_target
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.layout import group_and_bits

FORMATS: dict[str, Callable[[Path], Truth]] = {
    "hqq": as_hqq,
    "hqq, two shards": lambda path: as_hqq(path, shards=2),
    "awq": as_awq,
    "gptq": as_gptq,
    "gptq v2": lambda path: as_gptq(path, v2=True),
    "gptq 8 bits": lambda path: as_gptq(path, bits=8),
    "gptq 2 bits": lambda path: as_gptq(path, bits=2),
    "compressed": as_compressed,
    "compressed, zeros": lambda path: as_compressed(path, symmetric=False),
    "compressed 8 bits": lambda path: as_compressed(path, bits=8),
    "compressed 8 bits, zeros": lambda path: as_compressed(path, bits=8, symmetric=False),
    "compressed, one scale a row": lambda path: as_compressed(path, group=0),
}


def _numbers(data: bytes, dtype: str) -> Any:
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2", "U32": "<u4"}[dtype])


def dense_values(source: TargetSource) -> Truth:
    """Every tensor's values in float64, the quantised ones reckoned code by code."""
    found = {t.name: (_numbers(bytes(t.read()), t.dtype).reshape(t.shape), t) for t in source.tensors}
    values: Truth = {}
    for name, (array, _) in found.items():
        module, _, leaf = name.rpartition(".")
        if leaf in ("scales", "biases"):
            continue
        if f"{module}.scales" not in found:
            values[name] = array.astype(np.float64)
            continue
        assert source.quantization is not None
        group, bits = group_and_bits(source.quantization, module)
        stream = np.unpackbits(array.view(np.uint8), axis=-1, bitorder="little").reshape(len(array), -1, bits)
        codes = (stream.astype(np.float64) * 2.0 ** np.arange(bits)).sum(-1)
        scales, biases = (
            np.repeat(found[f"{module}.{p}"][0].astype(np.float64), group, 1) for p in ("scales", "biases")
        )
        values[name] = scales * codes + biases
    return values


@pytest.mark.parametrize("kind", FORMATS)
def test_every_value_is_kept(tmp_path: Path, kind: str) -> None:
    path = hf_directory(tmp_path)
    truth = FORMATS[kind](path)
    source = open_target(path)
    values = dense_values(source)
    assert values.keys() == truth.keys()
    for name, expected in truth.items():
        # The truth is exact but for the rounding of a float64 product, which the sum s * u + b has as well.
        np.testing.assert_allclose(values[name], expected, rtol=1e-14, atol=1e-14, err_msg=name)
    assert source.quantization is not None and not source.inexact
    assert "quantization_config" not in source.config_json


def test_mlx_reads_the_same_values(tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core")
    for kind in ("hqq", "awq", "gptq", "compressed, zeros"):
        path = hf_directory(tmp_path / kind)
        truth = FORMATS[kind](path)
        source = open_target(path)
        arrays = {t.name: _numbers(bytes(t.read()), t.dtype).reshape(t.shape) for t in source.tensors}
        assert source.quantization is not None
        for module in ("model.layers.1.mlp.down_proj", "model.layers.0.self_attn.v_proj"):
            group, bits = group_and_bits(source.quantization, module)
            scales, biases = (mx.array(arrays[f"{module}.{p}"].astype(np.float32)) for p in ("scales", "biases"))
            words = mx.array(arrays[f"{module}.weight"])
            opened = mx.dequantize(words, scales, biases, group_size=group, bits=bits)
            np.testing.assert_allclose(np.array(opened), truth[f"{module}.weight"], rtol=1e-5, atol=1e-6)


def test_the_codes_of_executorch_are_mlx_words(tmp_path: Path) -> None:
    path = hf_directory(tmp_path)
    as_hqq(path)
    data = (path / "model.safetensors").read_bytes()
    source = open_target(path)
    words = next(t for t in source.tensors if t.name == "model.layers.1.mlp.up_proj.weight")
    assert words.dtype == "U32" and bytes(words.read()) in data
    types = {t.name.rpartition(".")[2]: t.dtype for t in source.tensors if "layers.1.mlp.up_proj" in t.name}
    assert types == {"weight": "U32", "scales": "BF16", "biases": "F32"}
    assert {t.dtype for t in source.tensors if "embed_tokens" in t.name} == {"U32", "BF16"}
    assert source.quantization is not None
    assert (source.quantization.group_size, source.quantization.bits) == (32, 4)
    assert ("model.embed_tokens", 64, 8) in source.quantization.overrides


def test_a_head_in_the_file_wins_over_a_stale_flag(tmp_path: Path) -> None:
    path = hf_directory(tmp_path)
    as_hqq(path)
    assert json.loads((path / "config.json").read_text())["tie_word_embeddings"] is True
    assert not open_target(path).config.tie_embeddings


def _described(path: Path, name: str, change: dict[str, Any]) -> None:
    """Change the description of one tensor in the header."""
    data = (path / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    described = json.loads(header["__metadata__"][name])
    described |= {key: value for key, value in change.items() if key != "_data"}
    described["_data"] |= change.get("_data", {})
    header["__metadata__"][name] = json.dumps(described)
    raw = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + data[8 + size :])


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("lm_head.weight", {"_type": "Float8Tensor"}, r"lm_head\.weight is a tensor of the kind 'Float8Tensor'"),
        (
            "lm_head.weight",
            {"_tensor_data_names": ["qdata", "scale", "zero_point", "act_pre_scale"]},
            r"lm_head\.weight: the part act_pre_scale is one too many or missing",
        ),
        ("lm_head.weight", {"_data": {"block_size": [2, 32]}}, r"blocks of \[2, 32\]"),
        ("lm_head.weight", {"_data": {"shape": [320, 32]}}, r"has the shape \[320, 64\], and the header says"),
        (
            "lm_head.weight",
            {"_data": {"block_size": [1, 64]}},
            r"_weight_scale of the shape \[2, 320\], not \[1, 320\]",
        ),
        ("embed_tokens.weight", {"_data": {"activation_quantization": "x"}}, r"quantised activations"),
        ("embed_tokens.weight", {"_data": {"target_dtype": {"_data": "int3"}}}, r"I8 codes for .*int3.*not known"),
        ("embed_tokens.weight", {"_type": "Int4Tensor"}, r"4-bit codes of the type I8, not U8"),
    ],
)
def test_executorch_layouts_that_are_not_known(tmp_path: Path, name: str, change: dict[str, Any], what: str) -> None:
    path = hf_directory(tmp_path)
    as_hqq(path)
    _described(path, name, change)
    with pytest.raises(CheckpointError, match=what):
        open_target(path)


@pytest.mark.parametrize(
    ("rewrite", "what"),
    [
        (lambda path: as_awq(path, version="gemv"), r"AWQ of the version 'gemv' with 4 bits is not known"),
        (lambda path: as_awq(path, bits=8), r"AWQ of the version 'gemm' with 8 bits"),
        (lambda path: as_gptq(path, checkpoint_format="marlin"), r"GPTQ of the format 'marlin' with 4 bits"),
        (lambda path: _three(path), r"GPTQ of the format 'gptq' with 3 bits"),
        (lambda path: as_compressed(path, format="nvfp4-pack-quantized"), r"of the format 'nvfp4-pack-quantized'"),
        (lambda path: as_compressed(path, transform_config={"config_groups": {}}), r"transform_config"),
        (
            lambda path: as_compressed(path, config_groups={"a": {"input_activations": {"num_bits": 8}}}),
            r"quantised activations",
        ),
        (
            lambda path: as_compressed(path, group=16),
            r"_proj has groups of 16 columns, which MLX's layout has no place for",
        ),
    ],
)
def test_layouts_that_are_not_known(tmp_path: Path, rewrite: Callable[[Path], Truth], what: str) -> None:
    path = hf_directory(tmp_path)
    rewrite(path)
    with pytest.raises(CheckpointError, match=what):
        open_target(path)


def _three(path: Path) -> Truth:
    truth = as_gptq(path)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["bits"] = 3
    (path / "config.json").write_text(json.dumps(config))
    return truth


@pytest.mark.parametrize(
    ("rewrite", "part"),
    [
        (as_awq, "qzeros"),
        (as_gptq, "scales"),
        (as_compressed, "weight_shape"),
    ],
)
def test_a_part_that_is_missing(tmp_path: Path, rewrite: Callable[[Path], Truth], part: str) -> None:
    path = hf_directory(tmp_path)
    rewrite(path)
    name = f"model.layers.2.mlp.up_proj.{part}"
    drop_part(path, name)
    with pytest.raises(CheckpointError, match=rf"the tensor {name.replace('.', chr(92) + '.')} is missing"):
        open_target(path)


def test_parts_that_do_not_fit_each_other(tmp_path: Path) -> None:
    for number, (rewrite, part) in enumerate(
        ((as_awq, "qzeros"), (as_gptq, "qzeros"), (as_compressed, "weight_scale"))
    ):
        path = hf_directory(tmp_path / str(number))
        rewrite(path)
        tensors = load_file(path / "model.safetensors")
        name = f"model.layers.0.mlp.up_proj.{part}"
        tensors[name] = tensors[name][:-1].copy()
        save_file(tensors, path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"model\.layers\.0\.mlp\.up_proj has parts of the shapes"):
            open_target(path)


def test_a_written_over_zero_point_is_refused(tmp_path: Path) -> None:
    path = hf_directory(tmp_path)
    as_gptq(path)
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.qzeros"
    tensors[name] = np.full_like(tensors[name], -1)
    save_file(tensors, path / "model.safetensors")
    biases = next(t for t in open_target(path).tensors if t.name == "model.layers.0.mlp.up_proj.biases")
    with pytest.raises(CheckpointError, match=r"mlp\.up_proj cannot be converted exactly: a stored zero point is -1"):
        biases.read()


def test_groups_that_mlx_lacks_are_repeated() -> None:
    """Each scale and bias goes with its own columns: groups of 96 become three of 32."""
    values = np.arange(4, dtype=np.float32).reshape(2, 2)
    codes = Codes(
        shape=(2, 192),
        group=96,
        bits=4,
        words=lambda: np.zeros((2, 24), np.uint32),
        scales=lambda: values,
        biases=lambda: -values,
        scale_type="F16",
        bias_type="F32",
    )
    made = Converted()
    made.add("m", codes, "file")
    assert made.forms == {"m": (32, 4)}
    types = {"scales": "F16", "biases": "F32"}
    scales, biases = (_numbers(bytes(made.tensors[f"m.{part}"].read()), dtype) for part, dtype in types.items())
    assert scales.reshape(2, 6).tolist() == [[0, 0, 0, 1, 1, 1], [2, 2, 2, 3, 3, 3]]
    assert np.array_equal(biases, -scales)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_a_type_that_does_not_hold_a_number(dtype: str) -> None:
    with pytest.raises(NotExactError, match="a number does not fit"):
        stored(np.array([1.0 + 2.0**-20], np.float32), dtype)
    with pytest.raises(NotExactError):
        product(np.array([1.0 + 2.0**-20], np.float32), 1.0 + 2.0**-20)


def test_an_mlx_directory_is_taken_bit_for_bit(tmp_path: Path) -> None:
    """As mlx-lm writes one: quantised by MLX itself, several widths, exceptions in its config, a dense module."""
    mx = pytest.importorskip("mlx.core")
    path = hf_directory(tmp_path)
    tensors = {name: mx.array(value) for name, value in load_file(path / "model.safetensors").items()}
    settings: dict[str, Any] = {"group_size": 64, "bits": 4, "mode": "affine"}
    forms = {"mlp.down_proj": (32, 3), "self_attn.v_proj": (32, 6), "mlp.up_proj": (32, 8), "self_attn.o_proj": (64, 5)}
    expected: dict[str, Any] = {}
    for name in list(tensors):
        module = name.removesuffix(".weight")
        if tensors[name].ndim != 2 or "layers.2" in name:
            continue  # left dense: needs no entry
        group, bits = next((form for part, form in forms.items() if part in name), (64, 4))
        if (group, bits) != (64, 4):
            settings[module] = {"group_size": group, "bits": bits}
        words, scales, biases = mx.quantize(tensors[name].astype(mx.bfloat16), group_size=group, bits=bits)
        tensors |= {name: words, f"{module}.scales": scales, f"{module}.biases": biases}
        wide = [part.astype(mx.float32) for part in (scales, biases)]
        expected[name] = np.array(mx.dequantize(words, *wide, group_size=group, bits=bits))
    mx.save_safetensors(str(path / "model.safetensors"), tensors, {"format": "mlx"})
    config = json.loads((path / "config.json").read_text())
    config |= {"quantization": settings, "quantization_config": settings}
    (path / "config.json").write_text(json.dumps(config))
    out = export_bundle(path, None, tmp_path / "out")
    assert (out / "target" / "model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()
    values = dense_values(open_target(path))
    for name, theirs in expected.items():
        np.testing.assert_allclose(values[name], theirs, rtol=1e-5, atol=1e-6, err_msg=name)
    assert values.keys() == {name for name in tensors if not name.endswith((".scales", ".biases"))}
