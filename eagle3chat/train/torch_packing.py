"""A draft's directory with head and MLP in 4 bits, or such a one dense again.

Packed they are what the engine makes of the dense ones when it serves in int4: MLX's affine layout, groups of 32,
float16 scales and biases, declared in config.json as mlx-lm declares it. All else stays as it is, names too. vLLM,
SGLang and llama.cpp read the dense one. Knows directories, no target.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3chat.engine.affine import pack as words_of
from eagle3chat.engine.bundle import CONFIG
from eagle3chat.engine.config import Quantization
from eagle3chat.engine.draft_files import read_weights
from eagle3chat.engine.draft_names import canonical_name
from eagle3chat.engine.draft_quantization import QUANTIZATION, read_quantization
from eagle3chat.engine.errors import TrainError
from eagle3chat.engine.hf_config import quantization_json
from eagle3chat.engine.hf_values import read_json
from eagle3chat.engine.layout import DENSE, group_and_bits
from eagle3chat.engine.recoding import opened
from eagle3chat.engine.tensor_file import LazyTensor, read_header, write_tensors
from eagle3chat.kernels.cpu_linear import BLOCK, four_bit
from eagle3chat.train.torch_rounding import NAMES
from eagle3chat.train.torch_weights_file import TENSORS, TYPES

BITS = 4
README = "README.md"
SAID = """
## Packed

Head and MLP are stored in 4 bits (MLX's affine layout, groups of 32), as int4 pairs compute with them; all else is
dense. `eagle3chat train pack --dense` makes the dense directory again, which other engines read.
"""
Named = Mapping[str, LazyTensor]


def pack(path: Path, output: Path, *, dense: bool = False) -> Path:
    """Write the packed (or dense) directory of the draft in `path`; README.md and curves come along.

    Raises:
        TrainError: It is packed (or dense) already, `output` holds something, or has no room.
        Eagle3Error: The draft cannot be read.
    """
    config = read_json(path / CONFIG)
    stored, files = read_weights(path)
    canonical = {canonical_name(name): tensor for name, tensor in stored.items()}
    quantization = read_quantization(config, canonical, path.name)
    if dense == (quantization is None):
        what, fix = ("dense", "Leave out --dense") if dense else ("packed", "Add --dense to make it dense")
        raise TrainError(f"The draft {path.name} is {what} already.", f"{fix}, or name another draft.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise TrainError(f"{output} is there already.", "Choose another --output-dir, or delete it.")
    tensors = list(_opened(stored, quantization) if quantization is not None else _packed(stored))
    metadata = read_header(files[0]).metadata if files[0].suffix == ".safetensors" else {"format": "pt"}
    try:
        output.mkdir(parents=True, exist_ok=True)
        write_tensors(output / TENSORS, tensors, metadata)
        _write_config(output, config, tensors)
        _copy_words(path, output, dense=dense)
    except OSError as error:
        raise TrainError(f"{output} cannot be written ({error}).", "Choose another --output-dir.") from error
    return output


def _packed(stored: Named) -> Iterator[LazyTensor]:
    """Head and MLP in three tensors each, the others as they are."""
    for name, tensor in stored.items():
        if canonical_name(name) in NAMES and tensor.dtype in DENSE and tensor.shape[1] % BLOCK == 0:
            yield from _in_four_bits(name.removesuffix(".weight"), tensor)
        else:
            yield tensor


def _in_four_bits(module: str, tensor: LazyTensor) -> Iterator[LazyTensor]:
    codes, scales, biases = four_bit(_values(tensor))
    words = words_of(codes.numpy(), BITS)
    yield LazyTensor(f"{module}.weight", "U32", words.shape, _bytes(torch.from_numpy(words)))
    for part, values in (("scales", scales), ("biases", biases)):
        yield LazyTensor(f"{module}.{part}", "F16", tuple(values.shape), _bytes(values.half()))


def _values(tensor: LazyTensor) -> Tensor:
    return torch.frombuffer(bytearray(tensor.read()), dtype=TYPES[tensor.dtype]).view(tensor.shape).float()


def _bytes(values: Tensor) -> Callable[[], bytes]:
    return lambda: values.contiguous().view(torch.uint8).numpy().tobytes()


def _opened(stored: Named, quantization: Quantization) -> Iterator[LazyTensor]:
    """Quantised matrices as bfloat16, the others as they are."""
    for name, tensor in stored.items():
        module = name.removesuffix(".weight")
        if f"{module}.scales" in stored:
            _, bits = group_and_bits(quantization, canonical_name(name).removesuffix(".weight"))
            plain = opened(tensor, stored[f"{module}.scales"], stored[f"{module}.biases"], bits)
            yield LazyTensor(name, "BF16", plain.shape, _bytes(_values(plain).bfloat16()))
        elif not name.endswith((".scales", ".biases")):
            yield tensor


def _write_config(output: Path, config: Mapping[str, Any], tensors: list[LazyTensor]) -> None:
    values = {key: value for key, value in config.items() if key != QUANTIZATION}
    if any(tensor.name.endswith(".scales") for tensor in tensors):
        values[QUANTIZATION] = quantization_json(Quantization(group_size=BLOCK, bits=BITS))
    (output / CONFIG).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _copy_words(path: Path, output: Path, *, dense: bool) -> None:
    """README.md, which says what the file is, and pictures."""
    for file in path.glob("*.svg"):
        shutil.copyfile(file, output / file.name)
    if (path / README).is_file():
        text = (path / README).read_text(encoding="utf-8").replace(SAID, "")
        (output / README).write_text(text if dense else text + SAID, encoding="utf-8")
