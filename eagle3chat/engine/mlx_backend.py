"""The MLX backend: one conversation's caches, and the four verbs of `engine.backend` over them.

Everything is a graph until it is evaluated, which is waited for at one place in a round and one in a chunk of prefill,
both marked "host sync". Rows of the draft that the target has confirmed, but that the draft has not seen yet, are
pending: the next `draft` takes them in and makes its first proposal in one pass. MLX's streams belong to a thread:
build it, call it and free it on one. Knows no loop and no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx

from eagle3chat.engine.backend import Verdict, Worth
from eagle3chat.engine.bundle import Bundle
from eagle3chat.engine.mlx_choice import judge, read
from eagle3chat.engine.mlx_device import DTYPES, is_gpu, pick_device, pick_dtype, spare_compiler
from eagle3chat.engine.mlx_draft import DENSE, Bits, DraftHead
from eagle3chat.engine.mlx_noise import Noise
from eagle3chat.engine.mlx_penalty import Said, penalised
from eagle3chat.engine.mlx_proposal import MlxDraft, Pending, propose
from eagle3chat.engine.mlx_target import MlxTarget
from eagle3chat.engine.sampling import Sampling

PENDING_ROWS = 64  # the draft takes them in without proposing when so many have gathered

Progress = Callable[[str, float | None], None]


class MlxBackend:
    """See engine.backend.Backend.

    Args:
        bundle: Checked at its door.
        device: "auto", "cpu", "gpu".
        dtype: "auto", "float32", "bfloat16", "float16", "int4"; see `pick_dtype`.
        context: Positions; None: the bundle's.
        threads: MLX chooses its own; taken so that all backends open alike.
        progress: Told the stage and the share of the load.

    Raises:
        BackendError: The device or dtype is not possible here, or mlx-lm cannot open the target.
        BundleError: A weight is missing or unreadable.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str = "auto",
        dtype: str = "auto",
        context: int | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        del threads
        manifest = bundle.manifest
        report = progress or (lambda stage, fraction: None)
        self._device = pick_device(device)
        spare_compiler(self._device)
        self._dtype = pick_dtype(dtype, manifest, self._device)
        self._capacity = min(context or manifest.max_seq_len, manifest.max_seq_len)
        self._chunk = manifest.max_prefill
        taps = manifest.draft.taps if manifest.draft else ()
        form = DTYPES[self._dtype]
        self._head: DraftHead | None = None
        with mx.stream(self._device):
            self._target: MlxTarget | None = MlxTarget(
                bundle, taps, self._capacity, form, lambda f: report("loading the target", 0.9 * f)
            )
            self._unavailable = "" if manifest.draft else "the bundle has no draft"
            if manifest.draft is not None and bundle.draft_file is not None:
                if self._target.can_rollback:
                    report("loading the draft", 0.9)
                    # Its weights are read at every proposal, so bytes cost more than the little acceptance.
                    bits = Bits(most=8, few=4) if self._dtype == "int4" else DENSE
                    self._head = DraftHead(manifest.draft, bundle.draft_file, self._target, self._capacity, form, bits)
                else:
                    self._unavailable = "the target keeps a state that cannot go back to an earlier token"
            self._noise = Noise(manifest.target.vocab_size, fused=is_gpu(self._device))
        self._max_chain = manifest.max_chain if self._head else 0
        self._said = Said(manifest.target.vocab_size)
        self._pending = Pending()
        self._anchor: int | None = None
        self._verified: tuple[mx.array | None, tuple[int, ...]] | None = None  # taps and drafted ids of a verify
        report("loading the draft" if self._head else "loading the target", 1.0)

    @property
    def capacity(self) -> int:
        """Positions that both caches hold."""
        return self._capacity

    @property
    def max_chain(self) -> int:
        """The longest chain; 0 without a draft, and with a target that cannot drop rows."""
        return self._max_chain

    @property
    def unavailable(self) -> str:
        """Why there is nothing but plain decoding; empty: there is more."""
        return self._unavailable

    @property
    def device(self) -> str:
        """ "cpu" or "gpu"."""
        return "gpu" if is_gpu(self._device) else "cpu"

    @property
    def dtype(self) -> str:
        """ "float32", "bfloat16", "float16" or "int4"."""
        return self._dtype

    @property
    def memory_bytes(self) -> int:
        """Bytes of weights and caches."""
        return sum(part.nbytes for part in (self._target, self._head) if part is not None)

    @property
    def pass_bytes(self) -> int:
        """Bytes of weights that the target reads in a pass; 0: not known."""
        return 0 if self._target is None else self._target.pass_bytes

    def close(self) -> None:
        """Drop weights and caches. Calling it again does nothing."""
        if self._target is None:
            return
        self._target = self._head = self._verified = None
        self._pending = Pending()
        mx.clear_cache()

    # Prefill

    def prefill(self, tokens: Sequence[int], keep: int) -> Iterator[int]:
        """Cache tokens[:-1]; see Backend. Keeps nothing where the target cannot go back to `keep` rows."""
        assert self._target is not None
        assert 0 <= keep <= max(0, len(tokens) - 2) and len(tokens) <= self._capacity + 1
        with mx.stream(self._device):
            kept = self._rewind(keep)
        self._said.begin(tokens)
        if kept < keep:
            yield kept
        total = len(tokens) - 1
        while (start := self._target.rows) < total:
            end = min(start + self._chunk, total)
            with mx.stream(self._device):
                self._prefill_chunk(tokens[start : end + 1], end == total)
            yield end
        self._anchor = tokens[-1]

    def _rewind(self, keep: int) -> int:
        """Drop all rows of both caches but the first `keep`, or all rows; gives how many are left."""
        self._anchor = self._verified = None
        if not self._target.keep(keep):
            keep = 0
            self._target.keep(keep)
        if self._head is not None:
            if keep > self._head.cache.rows:
                self._catch_up()
            self._head.cache.keep(min(keep, self._head.cache.rows))
            self._pending = Pending()
            assert self._head.cache.rows == keep
        return keep

    def _prefill_chunk(self, tokens: Sequence[int], last: bool) -> None:
        """Cache all of `tokens` but the last one, which is only looked at; without logits.

        The draft takes in the same rows; the last one of a prompt stays pending, for the first proposal.
        """
        ids = mx.array(tokens, dtype=mx.int32)
        _, taps = self._target(ids[:-1])
        self._target.advance(len(tokens) - 1)
        if self._head is not None:
            seeded = len(tokens) - 1 - last
            if seeded:
                self._head.confirm(ids[1 : seeded + 1], taps[:seeded])
            if last:
                # A copy, for a slice would hold on to the taps of the whole chunk.
                self._pending.add(mx.take(taps, mx.array([seeded]), axis=0), [tokens[-1]])
        mx.eval(self._kept())  # host sync
        mx.clear_cache()

    def _kept(self) -> list[mx.array]:
        """All that a later round builds on: evaluated with what a round wants, so that no graph is left behind."""
        draft = self._head.cache.arrays if self._head is not None else []
        return [*self._target.cache_arrays(), *draft, *self._pending.taps]

    # Rounds

    def _catch_up(self) -> tuple[mx.array, mx.array]:
        """Take pending rows into the draft cache; gives the last one's token [1] and the pass's output [p, H]."""
        taps, tokens = self._pending.take()
        ids = mx.array(tokens, dtype=mx.int32)
        return ids[-1:], self._head.confirm(ids, taps)

    @property
    def early(self) -> bool:
        """See Backend: proposals are computed when the verification is."""
        return False

    def draft(self, chain: int, sampling: Sampling, worth: Worth | None = None) -> MlxDraft:
        """Launch proposals; see Backend. None without a feature to start from (a prompt of one token)."""
        assert self._anchor is not None and chain >= 0
        committed = self._target.rows + 1
        chain = min(chain, self._max_chain, self._capacity - committed)
        with mx.stream(self._device):
            if chain <= 0 or not self._pending.tokens:
                return MlxDraft(mx.array([self._anchor], dtype=mx.int32), mx.zeros(1), None, sampling.seed)
            noise = self._noise_of(committed, chain + 1, sampling)
            tokens, p = propose(self._head, *self._catch_up(), chain, sampling, noise, self._said.counts(sampling))
            mx.async_eval(tokens, p)  # runs while the target's graph is built
            return MlxDraft(tokens, p, noise, sampling.seed)

    def _noise_of(self, position: int, rows: int, sampling: Sampling) -> mx.array | None:
        """Noise [rows, V] of the positions from `position` on; None: greedy."""
        if sampling.temperature == 0.0:
            return None
        return self._noise.gumbel(sampling.seed, range(position, position + rows))

    def verify(self, draft: MlxDraft, sampling: Sampling) -> Verdict:
        """One target pass over the anchor and the drafted tokens; see Backend. Timings are the round's alone."""
        assert self._anchor is not None
        chain = draft.chain
        with mx.stream(self._device):
            logits, taps = self._target(draft.tokens)
            if (counts := self._said.counts(sampling)) is not None:
                logits = penalised(logits, counts.rows(draft.tokens[1:]), sampling)
            noise = draft.noise
            if (noise is None) != (sampling.temperature == 0.0) or draft.seed != sampling.seed or chain == 0:
                noise = self._noise_of(self._target.rows + 1, chain + 1, sampling)
            drafted = mx.roll(draft.tokens, -1)  # row i judges drafted[i]; what the bonus row judges is not looked at
            said = judge(logits, noise, drafted, sampling)
            table = mx.concatenate((said, drafted[:, None].astype(mx.float32), draft.p[:, None]), axis=-1)
            mx.async_eval(table, *([] if taps is None else [taps]), *self._kept())
        lines = table.tolist()  # host sync
        rows = [read(line) for line in lines]
        ids = tuple(int(line[-2]) for line in lines[:chain])
        self._verified = (taps, ids)
        return Verdict(
            drafted=ids,
            draft_p=tuple(line[-1] for line in lines[:chain]),
            target_p=tuple(row.target_p for row in rows[:chain]),
            chosen=tuple(row.chosen for row in rows),
            chosen_p=tuple(row.chosen_p for row in rows),
            runners_up=tuple(row.runners_up for row in rows),
            margin=tuple(row.margin for row in rows),
        )

    def commit(self, accepted: int, anchor: int) -> None:
        """Keep the anchor's row and those of drafted[:accepted]; see Backend."""
        assert self._verified is not None and 0 <= accepted <= len(self._verified[1])
        taps, drafted = self._verified
        self._target.advance(accepted + 1)
        self._said.add([*drafted[:accepted], anchor])
        if self._head is not None:
            with mx.stream(self._device):
                self._pending.add(taps[: accepted + 1], [*drafted[:accepted], anchor])
                if len(self._pending.tokens) >= PENDING_ROWS:
                    self._catch_up()
        self._anchor, self._verified = anchor, None
