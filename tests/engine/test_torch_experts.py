"""Mixtures of experts: transformers' own modules as the truth, few rows and many, quantised, and layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import MIXTURES, family_checkpoint, mxfp4_experts, true_module
from safetensors.torch import load_file, save_file
from tiny import quantize
from torch import Tensor

from eagle3chat.engine.config import Experts, Rope, TargetConfig
from eagle3chat.engine.errors import BundleError, CheckpointError
from eagle3chat.engine.expert_layout import expert_stacks
from eagle3chat.engine.hf_experts import with_stacks
from eagle3chat.engine.tensor_file import LazyTensor, read_header, write_tensors
from eagle3chat.engine.torch_experts import Mixture, Stack, _whole, load_mixture
from eagle3chat.engine.torch_weights import Affine, Checkpoint, mxfp4

KINDS = {"gpt_oss": "gpt_oss", "gemma4_moe": "gemma4", "qwen3_moe": "qwen3"}
AT = "model.layers.1"
CPU = torch.device("cpu")


def _config(path: Path, family: str) -> TargetConfig:
    """What the experts need of a config."""
    values = json.loads((path / "config.json").read_text())
    inner = values["intermediate_size"] if family == "gpt_oss" else values["moe_intermediate_size"]
    return TargetConfig(
        family=values["model_type"],
        vocab_size=values["vocab_size"],
        hidden_size=values["hidden_size"],
        intermediate_size=values["intermediate_size"],
        num_layers=values["num_hidden_layers"],
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_eps=values["rms_norm_eps"],
        rope=Rope(),
        max_position=64,
        tie_embeddings=False,
        activation="gelu_tanh" if family == "gemma4_moe" else "silu",
        experts=Experts(
            KINDS[family],  # type: ignore[arg-type]
            8,
            2,
            inner,
            normalize=values.get("norm_topk_prob", True),
            limit=values.get("swiglu_limit", 0.0),
        ),
    )


def _stacked(path: Path, config: TargetConfig) -> Path:
    """The checkpoint with its experts as a bundle has them."""
    header = read_header(path / "model.safetensors")
    tensors = {n: LazyTensor(n, i.dtype, i.shape, i.read) for n, i in header.tensors.items()}
    made = with_stacks(tensors, config, str(path))
    file = path / "stacked.safetensors"
    write_tensors(file, list(made.values()))
    return file


def _mixture(path: Path, family: str, **options: Any) -> Mixture:
    config = _config(path, family)
    checkpoint = Checkpoint([_stacked(path, config)])
    return load_mixture(checkpoint, AT, config, **({"int4": False, "dtype": torch.float32, "device": CPU} | options))


def _rows(count: int, width: int = 64) -> Tensor:
    return torch.from_numpy(np.random.default_rng(3).standard_normal((count, width)).astype(np.float32))


def _same(found: Tensor, wanted: Tensor) -> None:
    """Equal to 1e-6 of the largest number."""
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-6 * max(1.0, float(wanted.abs().max())))


def _truth(path: Path, family: str, x: Tensor) -> Tensor:
    """transformers' experts of layer 1 on rows [M, width]; gemma4's without its norms around them."""
    layer = true_module(path).model.layers[1]
    with torch.inference_mode():
        if family == "gemma4_moe":
            _, shares, chosen = layer.router(x)
            return layer.experts(x, chosen, shares)
        y = layer.mlp(x[None])
        return (y[0] if isinstance(y, tuple) else y)[0]


@pytest.mark.parametrize(
    ("family", "changes"), [*((family, {}) for family in MIXTURES), ("qwen3_moe", {"norm_topk_prob": False})]
)
def test_experts_are_transformers_own(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, family, changes=changes)
    x = _rows(40)
    truth = _truth(path, family, x)
    assert truth.std() > 0.1
    torch.testing.assert_close(_mixture(path, family)(x), truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", MIXTURES)
def test_a_row_does_not_hang_on_the_others(family: str, tmp_path: Path) -> None:
    mixture = _mixture(family_checkpoint(tmp_path, family), family)
    x = _rows(40)
    all_rows = mixture(x)
    for rows in (1, 2, 7, 17):
        _same(mixture(x[:rows]), all_rows[:rows])
    _same(mixture(x[[3, 3, 3]]), all_rows[[3, 3, 3]])


@pytest.mark.parametrize("family", MIXTURES)
def test_gathered_weights_give_the_same_numbers(family: str, tmp_path: Path) -> None:
    mixture = _mixture(family_checkpoint(tmp_path, family), family)
    x = _rows(9)
    grouped = mixture(x)
    for stack in (mixture.gate_up, mixture.down):
        biases = [linear.bias for linear in stack.linears]
        bias = None if biases[0] is None else torch.stack(biases)
        made = Stack.dense(torch.stack([linear.weight for linear in stack.linears]), bias)
        stack.whole = made.whole
        assert made.nbytes == stack.nbytes
    mixture.gathers = True  # as on another device than a CPU
    _same(mixture(x), grouped)
    mixture.gate_up.linears = []  # not touched by a pass of few rows
    mixture(x)
    with pytest.raises(IndexError):
        mixture(_rows(17))


@pytest.mark.parametrize("family", MIXTURES)
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_experts_are_what_their_codes_say(family: str, bits: int, tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, family)
    config = _config(path, family)
    tensors = load_file(_stacked(path, config))
    dense = dict(tensors)
    for module, count, rows, columns in expert_stacks(config):
        flat = tensors.pop(f"{module}.weight").reshape(count * rows, columns).numpy()
        words, scales, biases = (torch.from_numpy(part) for part in quantize(flat, bits))
        tensors[f"{module}.weight"] = words.view(count, rows, -1)
        tensors[f"{module}.scales"] = scales.view(count, rows, -1)
        tensors[f"{module}.biases"] = biases.view(count, rows, -1)
    save_file(tensors, path / "affine.safetensors")
    checkpoint = Checkpoint([path / "affine.safetensors"])
    options = {"dtype": torch.float32, "device": CPU}
    mixture = load_mixture(checkpoint, AT, config, int4=False, **options)
    for module, count, rows, columns in expert_stacks(config):
        parts = checkpoint.stack(module, count, rows, columns)
        dense[f"{module}.weight"] = torch.stack([part.dense() for part in parts])
    save_file(dense, path / "dense.safetensors")
    same = load_mixture(Checkpoint([path / "dense.safetensors"]), AT, config, int4=False, **options)
    x = _rows(11)
    _same(mixture(x), same(x))
    truth = _truth(path, family, x)
    assert float((mixture(x) - truth).norm() / truth.norm()) < (0.3 if bits == 4 else 0.02)
    kept = load_mixture(checkpoint, AT, config, int4=True, dtype=torch.bfloat16, device=CPU)
    coarse = kept(x.bfloat16()).float()
    assert float((coarse - same(x)).norm() / truth.norm()) < 0.1  # bfloat16, and the kernels' 8-bit activations
    assert kept.nbytes < 0.4 * same.nbytes


@pytest.mark.parametrize("quantised", [False, True])
def test_a_device_of_another_kind_has_dense_stacks(quantised: bool) -> None:
    """Without one here: the numbers that would be put there."""
    made = torch.Generator().manual_seed(0)
    if not quantised:
        whole = torch.randn(3, 4, 64, generator=made)
        assert torch.equal(_whole(whole, torch.bfloat16), whole.bfloat16())
        return
    parts = [quantize(torch.randn(4, 64, generator=made).numpy(), 4) for _ in range(3)]
    affine = [Affine(*(torch.from_numpy(part) for part in own), 4, 32) for own in parts]
    assert torch.equal(_whole(affine, torch.float32), torch.stack([own.dense() for own in affine]))


def test_a_misshapen_stack_is_refused_by_name(tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, "qwen3_moe")
    config = _config(path, "qwen3_moe")
    tensors = load_file(_stacked(path, config))
    name = f"{AT}.mlp.switch_mlp.up_proj.weight"
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, path / "short.safetensors")
    with pytest.raises(BundleError, match=r"switch_mlp\.up_proj\.weight is \(8, 31, 64\) and should be \(8, 32, 64\)"):
        load_mixture(Checkpoint([path / "short.safetensors"]), AT, config, int4=False, dtype=torch.float32, device=CPU)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3_moe", f"{AT}.mlp.experts.5.up_proj.weight"),
        ("gemma4_moe", f"{AT}.experts.gate_up_proj"),
        ("gpt_oss", f"{AT}.mlp.experts.down_proj_bias"),
    ],
)
def test_a_checkpoint_without_one_of_its_experts_is_refused_by_name(family: str, name: str, tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, family)
    tensors = load_file(path / "model.safetensors")
    whole = tensors.pop(name)
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"the tensor {name} is missing"):
        _stacked(path, _config(path, family))
    save_file(tensors | {name: whole[:-1].contiguous()}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"the tensor {name} has the shape"):
        _stacked(path, _config(path, family))


def test_experts_of_two_dtypes_are_refused(tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, "qwen3_moe")
    name = f"{AT}.mlp.experts.5.up_proj.weight"
    tensors = load_file(path / "model.safetensors")
    save_file(tensors | {name: tensors[name].half()}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"5\.up_proj\.weight is F16, not F32"):
        _stacked(path, _config(path, "qwen3_moe"))


def test_stacks_pass_through_as_they_are(tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, "gpt_oss")
    config = _config(path, "gpt_oss")
    header = read_header(_stacked(path, config))
    tensors = {n: LazyTensor(n, i.dtype, i.shape, i.read) for n, i in header.tensors.items()}
    assert with_stacks(tensors, config, "x") == tensors


def test_mxfp4_is_opened_exactly(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    path = family_checkpoint(tmp_path, "gpt_oss")
    config = _config(path, "gpt_oss")
    truth = mxfp4_experts(path, (1, 250))
    checkpoint = Checkpoint([_stacked(path, config)])
    at = f"{AT}.mlp.experts"
    both = convert_moe_packed_tensors(*truth[1, "gate_up_proj"])  # bfloat16 [E, K, N]
    assert torch.equal(checkpoint.stack(f"{at}.gate_proj", 8, 64, 64), both[..., ::2].mT)
    assert torch.equal(checkpoint.stack(f"{at}.up_proj", 8, 64, 64), both[..., 1::2].mT)
    down = convert_moe_packed_tensors(*truth[1, "down_proj"])
    assert torch.equal(checkpoint.stack(f"{at}.down_proj", 8, 64, 64), down.mT)
    assert f"{at}.gate_up_proj_blocks" not in checkpoint
    words, scales = checkpoint.tensor(f"{at}.down_proj.weight"), checkpoint.tensor(f"{at}.down_proj.scales")
    assert torch.equal(mxfp4(words[3], scales[3]), down.mT[3])
    long = mxfp4(words.repeat(20, 1, 1).view(-1, 8), scales.repeat(20, 1, 1).view(-1, 2))
    assert torch.equal(long.view(20, 8, 64, 64)[19], down.mT)  # in more than one step
