"""What an export changes: quantised targets and drafts on both backends, shared embeddings, linked files, refusals."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from quantised_dirs import as_gptq, as_hqq, hf_directory
from safetensors.numpy import load_file, save_file
from tiny import tiny_bundle

from eagle3chat.cli import main
from eagle3chat.engine import bundle_writer
from eagle3chat.engine.anatomy import dissect
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.config import Quantization
from eagle3chat.engine.errors import BundleError, CheckpointError, Eagle3Error, SettingError
from eagle3chat.engine.events import Round
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.pair import open_pair
from eagle3chat.engine.quantise import Coding
from eagle3chat.engine.recoding import Changes
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import Session

Array = npt.NDArray[Any]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A dense Hugging Face directory of 4 layers, width 64, 320 tokens."""
    return hf_directory(tmp_path)


@pytest.fixture
def draft(tmp_path: Path, target: Path) -> Path:
    """A draft for it with a copy of its embedding, trained with it frozen."""
    return draft_directory(tmp_path)


def draft_directory(tmp_path: Path, change: float = 0.0) -> Path:
    bundle = tiny_bundle(tmp_path / "pair", own_embedding=True)
    tensors = load_file(bundle / "draft" / "model.safetensors")
    ids = tensors.pop("target_ids")
    tensors = {name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()}
    tensors["d2t"] = ids - np.arange(len(ids))
    tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"] + np.float32(change)
    path = tmp_path / "tiny-eagle3"
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    values = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": 320,
        "draft_vocab_size": len(ids),
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    }
    (path / "config.json").write_text(json.dumps(values))
    return path


def said(path: Path, backend: str, dtype: str = "float32") -> tuple[str, int]:
    """A greedy reply and how many drafts were accepted in it."""
    pair = open_pair(PairOptions(bundle=str(path), backend=backend, dtype=dtype, device="cpu", threads=1))
    try:
        session = Session(pair)
        chain = min(3, pair.backend.max_chain)
        say = Say((Message("user", "Say something of some length."),), Controls(chain, Sampling()), 32)
        rounds = [event for event in session.reply(say) if isinstance(event, Round)]
        return "".join(round.text for round in rounds), sum(round.accepted for round in rounds)
    finally:
        pair.backend.close()


def test_a_quantised_pair_says_the_same_on_both_backends(tmp_path: Path, target: Path, draft: Path) -> None:
    pytest.importorskip("mlx.core")
    remarks: list[str] = []
    changes = Changes(target=Coding(4, 32), draft_bits=4)
    out = export_bundle(target, draft, tmp_path / "out", changes=changes, remark=remarks.append, own_embedding=True)
    manifest = open_bundle(out).manifest
    assert manifest.quantization == Quantization(32, 4, (("model.embed_tokens", 32, 8),))
    assert manifest.draft_quantization == Quantization(32, 4, (("embed_tokens", 32, 8), ("lm_head", 32, 8)))
    assert json.loads((out / "target" / "config.json").read_text())["quantization"]["bits"] == 4
    shares = [r for r in remarks if "were quantised: relative error" in r]
    assert [text.split(":")[0] for text in shares] == [
        "30 matrices of the target were quantised",
        "10 matrices of the draft were quantised",
    ]
    texts = {said(out, backend)[0] for backend in ("torch", "mlx")}
    assert len(texts) == 1 and len(texts.pop()) > 20
    assert said(out, "torch", "int4")[0]


def test_the_parts_of_a_quantised_draft_are_counted(tmp_path: Path, target: Path, draft: Path) -> None:
    out = export_bundle(target, draft, tmp_path / "out", changes=Changes(draft_bits=8))
    parts = {(p.model, p.name, p.precision) for p in dissect(open_bundle(out)).parts}
    assert {("draft", "mlp", "8-bit"), ("draft", "head", "8-bit"), ("target", "mlp", "F32")} <= parts
    assert open_bundle(out).manifest.draft_quantization == Quantization(32, 8)


def test_a_quantised_draft_is_close_to_the_dense_one(tmp_path: Path, target: Path, draft: Path) -> None:
    """Of 8 bits it drafts nearly what it drafted."""
    dense = export_bundle(target, draft, tmp_path / "dense")
    eight = export_bundle(target, draft, tmp_path / "eight", changes=Changes(draft_bits=8))
    (text, accepted), (other, nearly) = said(dense, "torch"), said(eight, "torch")
    assert text == other
    assert abs(accepted - nearly) <= 2 and accepted > 4


def test_a_group_that_does_not_divide_the_columns(tmp_path: Path, target: Path) -> None:
    out = export_bundle(target, None, tmp_path / "out", changes=Changes(target=Coding(4, 64, refine=True)))
    quantization = open_bundle(out).manifest.quantization
    assert quantization is not None
    assert (quantization.group_size, quantization.bits) == (64, 4)
    assert ("model.layers.0.mlp.down_proj", 32, 4) in quantization.overrides  # of 96 columns
    for file in ("model.safetensors", "config.json"):
        shutil.copy(out / "target" / file, target / file)
    with pytest.raises(CheckpointError, match=r"Tiny-Hf is quantised already\. Leave out --quantize-target"):
        export_bundle(target, None, tmp_path / "again", changes=Changes(target=Coding(8)))
    remarks: list[str] = []
    changes = Changes(target=Coding(8), requantize=True)
    again = open_bundle(export_bundle(target, None, tmp_path / "again", changes=changes, remark=remarks.append))
    assert again.manifest.quantization == Quantization(32, 8)
    assert float(remarks[-1].split("relative error ")[1].split("%")[0]) < 1.0  # of the 4-bit values


def test_columns_out_of_order_are_refused_or_measured(tmp_path: Path, target: Path) -> None:
    truth = as_gptq(target, act_order=True)
    with pytest.raises(
        CheckpointError, match=r"down_proj and 27 more cannot be converted exactly: its columns are not in"
    ):
        export_bundle(target, None, tmp_path / "out")
    remarks: list[str] = []
    out = export_bundle(target, None, tmp_path / "out", changes=Changes(requantize=True), remark=remarks.append)
    assert remarks[-1].startswith("28 matrices of the target were quantised: relative error 0.")
    assert open_bundle(out).manifest.quantization == Quantization(32, 8)
    tensors = load_file(out / "target" / "model.safetensors")
    module = "model.layers.1.mlp.up_proj"
    codes = tensors[f"{module}.weight"].view(np.uint8).astype(float)
    made = np.repeat(tensors[f"{module}.scales"].astype(float), 32, 1) * (codes - 128)
    expected = truth[f"{module}.weight"]
    assert np.linalg.norm(made - expected) < 0.01 * np.linalg.norm(expected)


def test_files_that_need_no_change_are_linked(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file itself, where the directory holds symbolic links as a hub's cache does."""
    blob = tmp_path / "blobs" / "abc"
    blob.parent.mkdir()
    (target / "model.safetensors").rename(blob)
    (target / "model.safetensors").symlink_to(blob)
    made = export_bundle(target, None, tmp_path / "out") / "target" / "model.safetensors"
    assert made.stat().st_ino == blob.stat().st_ino and not made.is_symlink()
    made = export_bundle(target, None, tmp_path / "copy", copy_target=True) / "target" / "model.safetensors"
    assert made.stat().st_ino != blob.stat().st_ino and made.read_bytes() == blob.read_bytes()

    def other_disk(*args: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_disk)
    remarks: list[str] = []
    made = export_bundle(target, None, tmp_path / "far", remark=remarks.append) / "target" / "model.safetensors"
    assert made.is_symlink() and made.resolve() == blob
    assert remarks == [f"The target's weights stay in {blob.parent}; --copy-target copies them."]
    assert open_bundle(tmp_path / "far").manifest.name == "Tiny-Hf"


@pytest.mark.parametrize("copy", [False, True])
def test_shards_keep_an_index(tmp_path: Path, target: Path, copy: bool) -> None:
    shards(target)
    told: list[float] = []
    report = lambda stage, fraction: told.append(fraction)  # noqa: E731
    out = export_bundle(target, None, tmp_path / "out", copy_target=copy, progress=report)
    assert told == sorted(told) and told[-1] == 1.0
    assert max(fraction for fraction in told if fraction < 0.97) == pytest.approx(
        0.95
    )  # all that was announced is done
    names = sorted(path.name for path in (out / "target").iterdir())
    assert names == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert len(open_bundle(out).target_files) == 2


def shards(target: Path) -> None:
    """Cut the only file in two, with an index."""
    tensors = load_file(target / "model.safetensors")
    names = list(tensors)
    (target / "model.safetensors").unlink()
    index = {}
    for file, some in (("a.safetensors", names[::2]), ("b.safetensors", names[1::2])):
        save_file({name: tensors[name] for name in some}, target / file)
        index |= dict.fromkeys(some, file)
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def _truncate(target: Path) -> None:
    data = (target / "b.safetensors").read_bytes()
    (target / "b.safetensors").write_bytes(data[:-100])


def _unlisted(target: Path) -> None:
    index = json.loads((target / "model.safetensors.index.json").read_text())
    del index["weight_map"]["lm_head.weight"]
    (target / "model.safetensors.index.json").write_text(json.dumps(index))


def _twice(target: Path) -> None:
    tensors = load_file(target / "a.safetensors")
    tensors["lm_head.weight"] = load_file(target / "b.safetensors").get("lm_head.weight", tensors.get("lm_head.weight"))
    for file in ("a.safetensors", "b.safetensors"):
        some = load_file(target / file) | {"lm_head.weight": tensors["lm_head.weight"]}
        save_file(some, target / file)


def _wrong_type(target: Path) -> None:
    for file in ("a.safetensors", "b.safetensors"):
        tensors = load_file(target / file)
        if "model.norm.weight" in tensors:
            tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.int32)
            save_file(tensors, target / file)


def _no_number(target: Path) -> None:
    for file in ("a.safetensors", "b.safetensors"):
        tensors = load_file(target / file)
        if "lm_head.weight" in tensors:
            tensors["lm_head.weight"][17] = np.nan
            save_file(tensors, target / file)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (_truncate, r"b\.safetensors: cut off"),
        (_unlisted, r"index\.json: does not say that the tensor lm_head\.weight is in"),
        (_twice, r"the tensor lm_head\.weight is also in a\.safetensors"),
        (_wrong_type, r"model\.norm\.weight has the type I32"),
        (_no_number, r"lm_head\.weight has a number that is not finite, in row 17"),
    ],
)
@pytest.mark.parametrize("changes", [Changes(), Changes(target=Coding())], ids=["linked", "quantised"])
def test_damage_is_refused_by_name(tmp_path: Path, target: Path, damage: Any, what: str, changes: Changes) -> None:
    shards(target)
    damage(target)
    with pytest.raises(Eagle3Error, match=what.replace("finite, in", "finite,? in")):
        export_bundle(target, None, tmp_path / "place" / "out", changes=changes)
    assert not list((tmp_path / "place").iterdir() if (tmp_path / "place").exists() else [])


def test_a_pickle_is_read_and_one_with_code_is_not(tmp_path: Path, target: Path) -> None:
    torch = pytest.importorskip("torch")
    tensors = load_file(target / "model.safetensors")
    (target / "model.safetensors").unlink()
    torch.save({name: torch.from_numpy(value) for name, value in tensors.items()}, target / "pytorch_model.bin")
    out = export_bundle(target, None, tmp_path / "out")
    made = load_file(out / "target" / "model.safetensors")
    assert all(np.array_equal(made[name], tensors[name]) for name in tensors)
    ran = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(ran),)

    torch.save({"model.norm.weight": Trap()}, target / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin holds more than tensors .*mkdir.* could run code"):
        export_bundle(target, None, tmp_path / "out")
    assert not ran.exists()


def test_no_room(tmp_path: Path, target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    free = bundle_writer.SPARE + 200_000  # more than the draft takes, less than the target
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
    changes = Changes(target=Coding(8))
    with pytest.raises(BundleError, match=r"place/out: needs 0\.03 GB, and 0\.03 GB are free"):
        export_bundle(target, draft, tmp_path / "place" / "out", changes=changes, copy_target=True)
    assert not (tmp_path / "place").exists()
    export_bundle(target, None, tmp_path / "place" / "out")  # links take none


def test_a_shared_embedding_is_compared(tmp_path: Path, target: Path) -> None:
    draft = draft_directory(tmp_path)
    out = export_bundle(target, draft, tmp_path / "out", share_embedding=True)
    manifest = open_bundle(out).manifest
    assert manifest.draft is not None and not manifest.draft.own_embedding
    values = json.loads((draft / "config.json").read_text()) | {"embed_requires_grad": True}
    (draft / "config.json").write_text(json.dumps(values))
    assert open_bundle(export_bundle(target, draft, out, share_embedding=True)).manifest.draft == manifest.draft
    shutil.rmtree(draft)
    shutil.rmtree(tmp_path / "pair")
    draft = draft_directory(tmp_path, change=0.3)
    with pytest.raises(
        CheckpointError, match=r"cannot be shared: embed_tokens\.weight differs from it in 64 of 64 rows"
    ):
        export_bundle(target, draft, tmp_path / "out", share_embedding=True)


def test_a_draft_for_another_tokenizer(tmp_path: Path, target: Path, draft: Path) -> None:
    shutil.copy(target / "tokenizer.json", draft / "tokenizer.json")
    export_bundle(target, draft, tmp_path / "out")
    values = json.loads((draft / "tokenizer.json").read_text())
    values["note"] = "another file with the same tokens"
    (draft / "tokenizer.json").write_text(json.dumps(values))
    export_bundle(target, draft, tmp_path / "out")
    vocab = values["model"]["vocab"]
    vocab["e"], vocab["t"] = vocab["t"], vocab["e"]
    (draft / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(
        CheckpointError, match=r"tiny-eagle3: the draft was trained with another tokenizer: its token 'e' is"
    ):
        export_bundle(target, draft, tmp_path / "out")


def test_settings_that_do_not_go_together(tmp_path: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["export", "--target", str(target), "--output-dir", str(tmp_path / "out")]
    for flags, what in (
        (["--quantize-target", "int4", "--group-size", "48"], "Groups of 48 columns are not possible."),
        (["--group-size", "64"], "--group-size is of a target that is quantised."),
        (["--draft-bits", "8"], "--draft-bits is of a draft that is quantised."),
        (["--own-embedding", "--share-draft-embedding"], "A draft cannot both share"),
        (["--target-model", "gemma5"], "The target model 'gemma5' is not known."),
        (["--target-model", "gemma4_31b"], "Tiny-Hf is of the family llama, and gemma4_31b of gemma4_text."),
    ):
        assert main([*base, *flags]) != 0
        assert what in capsys.readouterr().err
    with pytest.raises(SettingError, match="A draft of 5 bits"):
        export_bundle(target, draft_directory(tmp_path), tmp_path / "out", changes=Changes(draft_bits=5))


def test_an_hqq_directory_decodes_on_both_backends(tmp_path: Path, target: Path) -> None:
    pytest.importorskip("mlx.core")
    as_hqq(target)
    out = export_bundle(target, None, tmp_path / "out")
    texts = {said(out, backend)[0] for backend in ("torch", "mlx")}
    assert len(texts) == 1 and len(texts.pop()) > 5
    assert said(out, "torch", "int4")[0] and said(out, "torch", "bfloat16")[0] and said(out, "mlx", "bfloat16")[0]


def test_an_evaluation_reads_a_quantised_draft(tmp_path: Path, target: Path, draft: Path) -> None:
    pytest.importorskip("torch")
    from eagle3chat.train.torch_evaluation import Judge

    own = {"own_embedding": True}
    dense, eight = (
        Judge(
            open_bundle(export_bundle(target, draft, tmp_path / str(bits), changes=Changes(draft_bits=bits), **own)), 64
        )
        for bits in (0, 8)
    )
    for name, weight in dense.weights.items():
        assert eight.weights[name].shape == weight.shape
        assert (eight.weights[name] - weight).norm() <= 0.02 * weight.norm(), name
