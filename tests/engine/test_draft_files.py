"""The files of a draft: safetensors and shards held against their index, and pickles of tensors alone."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_layouts import LAYOUTS, TARGET
from safetensors.torch import load_file, save_file

from eagle3chat.engine.checkpoint import open_draft
from eagle3chat.engine.draft_files import read_weights
from eagle3chat.engine.errors import BundleError, CheckpointError

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def pickled(tmp_path: Path) -> Path:
    """A draft as SafeAILab has it, in a pickle."""
    return LAYOUTS["SafeAILab"].write(tmp_path / "draft")


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A draft in two shards."""
    return LAYOUTS["several layers"].write(tmp_path / "draft")


def test_safetensors_are_taken_before_a_pickle(pickled: Path) -> None:
    tensors = torch.load(pickled / "pytorch_model.bin", weights_only=True)
    tensors["fc.weight"] += 1.0
    save_file(tensors, pickled / "model.safetensors")
    stored, files = read_weights(pickled)
    assert [file.name for file in files] == ["model.safetensors"]
    assert stored["fc.weight"].read() == tensors["fc.weight"].numpy().tobytes()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_read_as_it_is(tmp_path: Path, zipped: bool) -> None:
    """Views, parameters, every type; in the zip format and in the older one."""
    whole = torch.arange(24, dtype=torch.float32).view(4, 6)
    tensors = {
        "view": whole[:, 1:3],
        "parameter": torch.nn.Parameter(whole.bfloat16()),
        "mask": whole > 3,
        "ids": whole.long(),
        "scalar": torch.tensor(2.0),
        "none": torch.empty(0, 3),
    }
    (tmp_path / "d").mkdir()
    torch.save(tensors, tmp_path / "d" / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    stored, _ = read_weights(tmp_path / "d")
    assert {n: (t.dtype, t.shape) for n, t in stored.items()} == {
        "view": ("F32", (4, 2)),
        "parameter": ("BF16", (4, 6)),
        "mask": ("BOOL", (4, 6)),
        "ids": ("I64", (4, 6)),
        "scalar": ("F32", ()),
        "none": ("F32", (0, 3)),
    }
    assert bytes(stored["view"].read()) == whole[:, 1:3].contiguous().numpy().tobytes()
    assert bytes(stored["ids"].rows([2, 0])) == whole.long()[[2, 0]].numpy().tobytes()
    assert bytes(stored["scalar"].read()) == torch.tensor(2.0).numpy().tobytes()


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_with_code_is_refused_and_not_run(pickled: Path, zipped: bool) -> None:
    mark, file = pickled / "touched", pickled / "pytorch_model.bin"
    torch.save({"fc.weight": torch.ones(2), "x": Touch(mark)}, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin holds more than tensors.*could run code") as caught:
        open_draft(pickled, TARGET)
    assert "Convert it to model.safetensors" in caught.value.fix
    assert not zipped or "posix.mkdir" in caught.value.message
    assert not mark.exists()


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([torch.ones(2)], r"pytorch_model\.bin holds a list, not named tensors"),
        ({"state_dict": {"fc.weight": torch.ones(2)}}, r"pytorch_model\.bin: state_dict is a dict, not a plain tensor"),
        ({"epoch": 3}, r"epoch is a int, not a plain tensor"),
        ({"fc.weight": torch.ones(2, dtype=torch.complex64)}, r"fc\.weight is a tensor of torch\.complex64"),
        ({"fc.weight": torch.eye(2).to_sparse()}, r"fc\.weight is a tensor of torch\.float32"),
    ],
)
def test_a_pickle_of_something_else(pickled: Path, value: Any, what: str) -> None:
    torch.save(value, pickled / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=what):
        open_draft(pickled, TARGET)


def test_a_damaged_pickle(pickled: Path) -> None:
    file = pickled / "pytorch_model.bin"
    data = file.read_bytes()
    for damaged in (b"", data[: len(data) // 2], b"no pickle"):
        file.write_bytes(damaged)
        with pytest.raises((BundleError, CheckpointError), match=r"pytorch_model\.bin"):
            open_draft(pickled, TARGET)


def test_without_torch_a_pickle_cannot_be_read(pickled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin can only be read with torch") as caught:
        open_draft(pickled, TARGET)
    assert "eagle3chat[torch]" in caught.value.fix


def test_pickles_that_are_missing_or_hold_a_tensor_twice(tmp_path: Path) -> None:
    path = LAYOUTS["SafeAILab, one vocabulary"].write(tmp_path / "draft")
    first, second = (path / f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2))
    tensors = torch.load(second, weights_only=True)
    name = next(iter(torch.load(first, weights_only=True)))
    torch.save(tensors | {name: torch.ones(2)}, second)
    with pytest.raises(BundleError, match=rf"00002-of-00002\.bin: the tensor {name} is also in pytorch_model-00001"):
        open_draft(path, TARGET)
    second.unlink()
    with pytest.raises(BundleError, match=r"pytorch_model-00002-of-00002\.bin: is missing"):
        open_draft(path, TARGET)
    (path / "pytorch_model.bin.index.json").unlink()
    with pytest.raises(BundleError, match=r"pytorch_model\.bin: is missing"):
        open_draft(path, TARGET)


def _edit_index(path: Path, edit: Any) -> None:
    index = json.loads((path / INDEX).read_text())
    edit(index["weight_map"])
    (path / INDEX).write_text(json.dumps(index))


def test_a_missing_shard(shards: Path) -> None:
    (shards / SECOND).unlink()
    with pytest.raises(BundleError, match=rf"{SECOND}: is missing"):
        open_draft(shards, TARGET)
    (shards / INDEX).unlink()
    with pytest.raises(BundleError, match=r"model\.safetensors: is missing"):
        open_draft(shards, TARGET)


def test_a_tensor_in_two_shards(shards: Path) -> None:
    first = load_file(shards / FIRST)
    name = sorted(first)[0]
    save_file(load_file(shards / SECOND) | {name: first[name]}, shards / SECOND)
    with pytest.raises(BundleError, match=rf"{SECOND}: the tensor {name} is also in {FIRST}"):
        open_draft(shards, TARGET)


def test_a_tensor_that_the_index_lacks(shards: Path) -> None:
    _edit_index(shards, lambda names: names.pop("fc.weight"))
    with pytest.raises(BundleError, match=r"index\.json: does not say that the tensor fc\.weight is in model-0000"):
        open_draft(shards, TARGET)


def test_a_tensor_that_the_index_places_elsewhere(shards: Path) -> None:
    other = {FIRST: SECOND, SECOND: FIRST}
    _edit_index(shards, lambda names: names.update({"fc.weight": other[names["fc.weight"]]}))
    with pytest.raises(BundleError, match=r"index\.json: does not say that the tensor fc\.weight is in model-0000"):
        open_draft(shards, TARGET)


def test_a_tensor_that_no_shard_holds(shards: Path) -> None:
    _edit_index(shards, lambda names: names.update({"layers.7.mlp.up_proj.weight": FIRST}))
    with pytest.raises(BundleError, match=rf"{FIRST}: does not hold the tensor layers\.7\.mlp\.up_proj\.weight of the"):
        open_draft(shards, TARGET)


def test_adapters_and_quantised_drafts(shards: Path) -> None:
    quantised = shards / "hf_quant_config.json"
    quantised.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None}}))
    assert open_draft(shards, TARGET).config == LAYOUTS["several layers"].draft
    quantised.write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    with pytest.raises(CheckpointError, match=r"hf_quant_config\.json: the weights are quantised \(NVFP4\)"):
        open_draft(shards, TARGET)
    quantised.unlink()
    (shards / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"adapter_config\.json is part of an adapter \(LoRA\)"):
        open_draft(shards, TARGET)
