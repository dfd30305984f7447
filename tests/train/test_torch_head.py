"""What training computes is what drafting computes: every step of every anchor against the engine's own head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import tiny_bundle

from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.torch_draft import DraftHead
from eagle3chat.engine.torch_target import Precision, Target
from eagle3chat.engine.torch_weights import Checkpoint
from eagle3chat.train.torch_features import Features, observe
from eagle3chat.train.torch_head import HEAD, Head, join

DEPTH = 4
FLOAT = Precision(torch.float32, False, torch.device("cpu"))


class Rig:
    """A tiny pair, opened twice: the engine's head and the one that learns."""

    def __init__(self, directory: Path, **shape: object) -> None:
        bundle = open_bundle(tiny_bundle(directory, **shape))
        manifest = bundle.manifest
        self.target = Target(
            manifest.target, Checkpoint(bundle.target_files), manifest.draft.taps, 96, FLOAT, lambda f: None
        )
        checkpoint = Checkpoint([bundle.draft_file])
        self.drafting = DraftHead(manifest.draft, checkpoint, self.target, 96, FLOAT)
        checkpoint = Checkpoint([bundle.draft_file])
        names = ("fc.weight", "norm.weight", HEAD, *(n for n in checkpoint._where if n.startswith("layers.")))
        names += tuple(n for n in checkpoint._where if n.startswith(("fc_norm", "input_norm")))
        self.weights = {name: checkpoint.tensor(name).float() for name in names}
        self.learning = Head(manifest.draft, self.target.embed.weight, 96)
        self.vocab = manifest.target.vocab_size

    def conversation(self, length: int, start: int, seed: int) -> Features:
        ids = torch.randint(3, self.vocab, (length,), generator=torch.Generator().manual_seed(seed))
        return observe(self.target, ids.tolist(), start)

    @torch.inference_mode()
    def drafted(self, features: Features, anchor_row: int) -> list[torch.Tensor]:
        """The engine's probabilities [Vd] at each place of a chain that starts after true row `anchor_row`."""
        head, ids = self.drafting, features.ids
        head.cache.keep(0)
        rows = anchor_row + 1
        out = head(ids[1 : rows + 1], head.fuse(features.taps[:rows]), 0)
        head.cache.advance(rows)
        said = []
        for step in range(DEPTH):
            logits, feature = head.propose(out)
            said.append(logits[0].softmax(-1))
            token = rows + 1 + step
            if token >= len(ids):
                break
            out = head(ids[token : token + 1], feature, rows + step)
        return said


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"norm_output": True},
        {"norm_before_residual": True},
        {"heads": 4, "kv_heads": 1, "draft_head_dim": 32},
        {"hidden": 96, "taps": (0, 2, 4), "vocab": 200},
    ],
    ids=["plain", "norm_output", "norm_before_residual", "wide heads", "other taps"],
)
def test_every_step_of_every_anchor_is_what_drafting_computes(tmp_path: Path, shape: dict[str, object]) -> None:
    rig = Rig(tmp_path, **shape)
    several = [rig.conversation(19, 7, 1), rig.conversation(26, 2, 2), rig.conversation(9, 8, 3)]
    part = join(several, DEPTH)
    with torch.inference_mode():
        outs = rig.learning(rig.weights, part, DEPTH)
        learned = [(out @ rig.weights[HEAD].t()).softmax(-1) for out in outs]
    compared, row = 0, 0
    for features in several:
        for anchor in range(features.start - 2, len(features.ids) - 2):
            for step, p in enumerate(rig.drafted(features, anchor)):
                if step > int(part.last[row]):
                    break
                torch.testing.assert_close(learned[step][row], p, atol=1e-4, rtol=0.0)
                compared += 1
            row += 1
    assert row == len(part.anchors)
    assert compared == sum(4 * n - 6 if n > 3 else n * (n + 1) // 2 for n in part.replies)
