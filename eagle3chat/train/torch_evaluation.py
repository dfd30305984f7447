"""Three ways of drafting side by side, on the same replies and with the same logits.

    argmax     the draft's most probable token, whatever the temperature
    coupled    argmax(log q / sharpness + the target's noise): what the engine does
    rejection  Leviathan, Kalman, Matias (2023): a token drawn from q is kept with probability min(1, p / q)

A reply that stands fixes the rounds of the first two (see `torch_acceptance`). Of rejection sampling only the
probability of acceptance, sum of min(p, q), is known at each place of the reply, so its rounds are drawn with seeded
numbers, several times: an estimate, since an accepted token would not always be the reply's. Knows no command line.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from eagle3chat.bench import Case
from eagle3chat.engine.bundle import Bundle
from eagle3chat.engine.errors import TrainError
from eagle3chat.engine.layout import TARGET_IDS, draft_tensors
from eagle3chat.engine.pair import Pair
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.torch_choice import filtered
from eagle3chat.engine.torch_noise import Noise
from eagle3chat.engine.torch_target import Precision, Target
from eagle3chat.engine.torch_weights import Checkpoint, dense
from eagle3chat.train.evaluation import ARGMAX, REJECTION, Finding, Question, coupled
from eagle3chat.train.rounds import Rounds, walk
from eagle3chat.train.torch_features import Features, observe
from eagle3chat.train.torch_head import HEAD, Head, join
from eagle3chat.train.torch_sampling import decode, prompt_ids

WALKS = 16  # of rejection sampling a reply


class Judge:
    """The target and the draft of a bundle in float32, beside the pair that decodes."""

    def __init__(self, bundle: Bundle, length: int) -> None:
        config, draft = bundle.manifest.target, bundle.manifest.draft
        if draft is None or bundle.draft_file is None or draft.num_layers != 1:
            raise TrainError(f"{bundle.path.name} has no draft that can be evaluated.", "Use one of one layer.")
        self.precision = Precision(torch.float32, False, torch.device("cpu"))
        target_weights, draft_weights = Checkpoint(bundle.target_files), Checkpoint([bundle.draft_file])
        self.target = Target(config, target_weights, draft.taps, length, self.precision, lambda share: None)
        shapes = {name: shape for name, shape in draft_tensors(draft).items() if name != TARGET_IDS}
        self.weights = {
            name: dense(draft_weights.weight(name.removesuffix(".weight"), *shape))
            if len(shape) == 2
            else draft_weights.tensor(name).float()
            for name, shape in shapes.items()
        }
        if not draft.own_head:
            self.weights[HEAD] = dense(target_weights.weight("lm_head", config.vocab_size, config.hidden_size))
        self.target_ids = draft_weights.tensor(TARGET_IDS)
        embedding = (
            dense(draft_weights.weight("embed_tokens", config.vocab_size, draft.hidden_size))
            if draft.own_embedding
            else self.target.embed(torch.arange(config.vocab_size))
        )
        self.head = Head(draft, embedding, length)
        self.noise = Noise(config.vocab_size, self.precision.device)

    @torch.no_grad()
    def logits(self, features: Features, chain: int) -> Tensor:
        """Float32 [chain, R, Vd] of each place of the chains."""
        outs = self.head(self.weights, join([features], chain), chain)
        return torch.stack([out @ self.weights[HEAD].t() for out in outs])

    @torch.no_grad()
    def ways(self, features: Features, sampling: Sampling, question: Question) -> Iterator[tuple[str, Rounds]]:
        """The rounds of one reply, by way of drafting."""
        chain, limit = question.chain, question.max_new_tokens
        logits = self.logits(features, chain)
        reply = features.ids[features.start :]
        yield ARGMAX, _rounds(self.target_ids[logits.argmax(-1)], reply, limit)
        if sampling.temperature == 0.0:
            return
        logits = logits / sampling.temperature
        positions = range(features.start, len(features.ids) + chain)
        heard = self.noise.gumbel(sampling.seed, positions)[:, self.target_ids]
        for sharpness in question.sharpness:
            guesses = [
                (row / sharpness + heard[step : step + len(reply)]).argmax(-1) for step, row in enumerate(logits)
            ]
            yield coupled(sharpness), _rounds(self.target_ids[torch.stack(guesses)], reply, limit)
        p = filtered(self.target.logits(features.normed), sampling).softmax(-1)[:, self.target_ids]
        yield REJECTION, _drawn(logits.softmax(-1), p, random.Random(question.seed), limit)


def _rounds(guesses: Tensor, reply: Tensor, limit: int) -> Rounds:
    """Of guesses [chain, R] of the reply tokens r + place."""
    hits = [
        [a == b for a, b in zip(row.tolist(), reply[step:].tolist(), strict=False)] for step, row in enumerate(guesses)
    ]
    return walk(hits, len(reply), limit)


def _drawn(q: Tensor, p: Tensor, numbers: random.Random, limit: int) -> Rounds:
    """Rounds of rejection sampling: q [chain, R, Vd] of places, p [R, Vd] of the reply's tokens."""
    chain, count = q.shape[0], p.shape[0]
    kept = [torch.minimum(row[: count - step], p[step:]).sum(-1).tolist() for step, row in enumerate(q)]
    total = Rounds.none(chain)
    for _ in range(WALKS):
        hits = [[numbers.random() < share for share in row] for row in kept]
        total = total + walk(hits, count, limit)
    return total


def evaluate(pair: Pair, bundle: Bundle, question: Question, told: Callable[[str, float], None]) -> Iterator[Finding]:
    """Decode every case at every temperature with the target alone, and judge the draft on the replies.

    Args:
        pair: The bundle, open.
    """
    prompts = [prompt_ids(pair, case.prompt) for case in question.cases]
    judge = Judge(bundle, max(map(len, prompts)) + question.max_new_tokens + question.chain + 1)
    total = len(prompts) * len(question.temperatures)
    for number, (temperature, case, prompt) in enumerate(_each(question, prompts)):
        told(f"{case.id}, temperature {temperature:g}", number / total)
        sampling = Sampling(temperature=temperature, top_p=question.top_p if temperature else 1.0, seed=question.seed)
        reply = decode(pair, prompt, sampling, question.max_new_tokens)
        features = observe(judge.target, [*prompt, *reply], len(prompt))
        for way, rounds in judge.ways(features, sampling, question):
            yield Finding(case.id, case.kind, temperature, way, rounds)


def _each(question: Question, prompts: Sequence[list[int]]) -> Iterator[tuple[float, Case, list[int]]]:
    for temperature in question.temperatures:
        for case, prompt in zip(question.cases, prompts, strict=True):
            yield temperature, case, prompt
