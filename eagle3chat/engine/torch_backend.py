"""The torch backend: one conversation's caches, and the four verbs of `engine.backend` over them.

What waits for the device is marked "host sync": one read a round, of one small tensor. Rows of the draft
that the target has confirmed, but that the draft has not seen yet, are pending: the next `draft`
takes them in and makes its first proposal in one pass. Knows no loop and no text.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from eagle3chat.engine.backend import Verdict, Worth
from eagle3chat.engine.bundle import Bundle
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.torch_choice import judge, verdict_of
from eagle3chat.engine.torch_device import DTYPES, Mark, pick_device, pick_dtype, start_kernels, upload
from eagle3chat.engine.torch_draft import DraftHead
from eagle3chat.engine.torch_draft_program import DraftProgram
from eagle3chat.engine.torch_graphs import Capture, Graphs, pick_graphs
from eagle3chat.engine.torch_noise import Noise
from eagle3chat.engine.torch_penalty import Said, penalised
from eagle3chat.engine.torch_proposal import Pending, TorchDraft, propose
from eagle3chat.engine.torch_rounds import Rounds
from eagle3chat.engine.torch_target import Precision, Target
from eagle3chat.engine.torch_weights import Checkpoint
from eagle3chat.kernels import cpu_linear

PENDING_ROWS = 256  # the draft takes them in without proposing when so many have gathered

Progress = Callable[[str, float | None], None]


class TorchBackend:
    """See engine.backend.Backend.

    Args:
        bundle: Checked at its door.
        device: "auto", "cpu", "cuda", "cuda:N".
        dtype: "auto", "float32", "bfloat16", "int4"; see `pick_dtype`.
        context: Positions; None: the bundle's.
        threads: Of torch and of the compiled kernels on a CPU; None: torch's choice.
        progress: Told the stage and the share of the load.
        capture: Records rounds, see torch_graphs.py; None: what the device has.

    Raises:
        BackendError: The device or dtype is not possible here.
        BundleError: A weight is missing or unreadable.
    """

    @torch.inference_mode()
    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str = "auto",
        dtype: str = "auto",
        context: int | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        capture: Capture | None = None,
    ) -> None:
        manifest = bundle.manifest
        report = progress or (lambda stage, fraction: None)
        if threads is not None:
            torch.set_num_threads(threads)
        self._threads = torch.get_num_threads()
        start_kernels(self._threads)
        self._device = pick_device(device)
        if self._device.index is not None:
            torch.cuda.set_device(self._device)  # triton starts its kernels on the current one
        self._dtype = pick_dtype(dtype, manifest, self._device)
        # torch's threads spin for milliseconds after an operation that used them, on the cores that the kernels'
        # threads need. In rounds, where the kernels do the work, torch therefore gets none.
        self._torch_threads = self._threads
        self._round_threads = 1 if self._dtype == "int4" and cpu_linear.usable() else self._threads
        self._capacity = min(context or manifest.max_seq_len, manifest.max_seq_len)
        self._chunk = manifest.max_prefill
        self._max_chain = manifest.max_chain if manifest.draft else 0
        precision = Precision(DTYPES[self._dtype], self._dtype == "int4", self._device)
        taps = manifest.draft.taps if manifest.draft else ()
        checkpoint = Checkpoint(bundle.target_files)
        self._target: Target | None = Target(
            manifest.target,
            checkpoint,
            taps,
            self._capacity,
            precision,
            lambda f: report("loading the target", 0.9 * f),
        )
        checkpoint.close()
        self._head: DraftHead | None = None
        if manifest.draft is not None and bundle.draft_file is not None:
            report("loading the draft", 0.9)
            checkpoint = Checkpoint([bundle.draft_file])
            self._head = DraftHead(manifest.draft, checkpoint, self._target, self._capacity, precision)
            checkpoint.close()
        self._program = self._bind_program()
        self._inference = torch.inference_mode()  # entered again and again: made once, that is cheaper
        self._noise = Noise(manifest.target.vocab_size, self._device)
        self._said = Said(manifest.target.vocab_size, self._device)
        self._graphs = pick_graphs(self._device) if capture is None else Graphs(capture)
        self._rounds = self._open_rounds()
        self._pending = Pending()
        self._anchor: int | None = None
        self._lone = (ctypes.c_int64 * 1)()  # the anchor of a round without drafts, on a CPU ..
        self._alone = torch.frombuffer(self._lone, dtype=torch.int64).to(self._device)  # .. the same memory
        self._nothing = torch.zeros(1, device=self._device)  # and their probabilities
        self._verified: tuple[Tensor | None, Verdict] | None = None  # taps of the last verify, where they are ours
        report("loading the draft" if self._head else "loading the target", 1.0)

    @property
    def capacity(self) -> int:
        """Positions that both caches hold."""
        return self._capacity

    @property
    def max_chain(self) -> int:
        """The longest chain; 0 without a draft."""
        return self._max_chain

    @property
    def device(self) -> str:
        """Where it runs: "cpu", "cuda", "cuda:N"."""
        return str(self._device)

    @property
    def dtype(self) -> str:
        """ "float32", "bfloat16" or "int4"."""
        return self._dtype

    @property
    def threads(self) -> int:
        """That compute on a CPU: torch's and the compiled kernels'."""
        return self._threads

    @property
    def memory_bytes(self) -> int:
        """Bytes of weights and caches."""
        return sum(part.nbytes for part in (self._target, self._head) if part is not None)

    @property
    def graphs(self) -> str:
        """Why rounds are not recorded as graphs; empty: they are."""
        return self._graphs.reason

    @property
    def warnings(self) -> tuple[str, ...]:
        """What keeps rounds from being fast here, and what to do."""
        if not self._graphs.failed:
            return ()
        return (f"CUDA graphs fail here ({self._graphs.reason}): rounds start one kernel at a time, which is slower.",)

    @property
    def pass_bytes(self) -> int:
        """Bytes of weights that the target reads in a pass; 0: not known."""
        return 0 if self._target is None else self._target.pass_bytes

    def close(self) -> None:
        """Drop weights and caches. Calling it again does nothing."""
        if self._target is None:
            return
        self._target = self._head = self._verified = self._program = self._rounds = None
        self._graphs.clear()
        self._pending = Pending()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    # Prefill

    def prefill(self, tokens: Sequence[int], keep: int) -> Iterator[int]:
        """Cache tokens[:-1]; see Backend."""
        assert self._target is not None
        assert 0 <= keep <= max(0, len(tokens) - 2) and len(tokens) <= self._capacity + 1
        # Where all layers are calls of the kernels, torch's spinning threads would only be in their way.
        self._torch_threads = self._round_threads if self._target.program is not None else self._threads
        torch.set_num_threads(self._torch_threads)
        kept = self._rewind(keep)
        self._said.begin(tokens)
        if kept < keep:
            yield kept
        total = len(tokens) - 1
        while (start := self._target.cache.rows) < total:
            end = min(start + self._chunk, total)
            self._prefill_chunk(tokens[start : end + 1], end == total)
            yield end
        self._anchor = tokens[-1]

    @torch.inference_mode()
    def _rewind(self, keep: int) -> int:
        """Drop all rows of both caches but the first `keep`, or all where the target's no longer allow it.

        Returns:
            How many rows are left.
        """
        self._settle()
        self._anchor = self._verified = None
        if self._head is not None and keep > self._head.cache.rows:
            self._catch_up()
        kept = self._target.cache.keep(keep)
        if self._head is not None:
            self._head.cache.keep(kept)
        self._pending = Pending()
        return kept

    @torch.inference_mode()
    def _prefill_chunk(self, tokens: Sequence[int], last: bool) -> None:
        """Cache all of `tokens` but the last one, which is only looked at; without logits.

        The draft takes in the same rows; the last one of a prompt stays pending, for the first proposal.
        """
        ids = upload(tokens, torch.int64, self._device)
        _, taps = self._target(ids[:-1])
        self._target.cache.advance(len(tokens) - 1)
        if self._head is None:
            return
        seeded = len(tokens) - 1 - last
        if seeded:
            self._head(ids[1 : seeded + 1], self._head.fuse(taps[:seeded]), self._head.cache.rows)
            self._head.cache.advance(seeded)
        if last:
            self._pending.add(taps[-1:].clone(), [tokens[-1]])  # a copy: the chunk's taps are large

    # Rounds

    def _bind_program(self) -> DraftProgram | None:
        """Chains as bound kernel calls, where the draft allows it."""
        if self._head is None or self._max_chain == 0 or not DraftProgram.fits(self._head):
            return None
        return DraftProgram(self._head, self._max_chain)

    def _open_rounds(self) -> Rounds | None:
        """Recorded rounds, where the device has them and the target allows it."""
        if self._graphs.on and (obstacle := Rounds.obstacle(self._target)):
            self._graphs = Graphs(None, obstacle)
        if not self._graphs.on:
            return None
        rounds = Rounds(self._target, self._head, self._capacity, self._noise, self._graphs)
        if self._device.type == "cuda":
            rounds.probe()
        return rounds

    def _settle(self) -> None:
        """Rounds are ours again, and not recorded."""
        if self._rounds is not None:
            self._rounds.leave(self._pending)

    @torch.inference_mode()
    def _catch_up(self) -> tuple[Tensor, Tensor]:
        """Take pending rows into the draft cache; gives their tokens [p] and the pass's output [p, H]."""
        taps, tokens = self._pending.take()
        ids = upload(tokens, torch.int64, self._device)
        out = self._head(ids, self._head.fuse(taps), self._head.cache.rows)
        self._head.cache.advance(len(tokens))
        return ids, out

    @property
    def early(self) -> bool:
        """See Backend: on a CPU nothing is waited for."""
        return self._device.type == "cpu"

    def draft(self, chain: int, sampling: Sampling, worth: Worth | None = None) -> TorchDraft:
        """Launch proposals; see Backend. None without a feature to start from (a prompt of one token)."""
        assert self._anchor is not None and chain >= 0
        if self._torch_threads != self._round_threads:
            self._torch_threads = self._round_threads
            torch.set_num_threads(self._torch_threads)
        chain = min(chain, self._max_chain, self._capacity - self._target.cache.rows - 1)
        if (chain <= 0 or not self._pending.tokens) and self._rounds is None and self._device.type == "cpu":
            started = Mark(self._device)
            self._lone[0] = self._anchor
            return TorchDraft(self._alone, self._nothing, None, sampling.seed, started, started)
        with self._inference:
            return self._propose(chain, sampling, worth)

    def _propose(self, chain: int, sampling: Sampling, worth: Worth | None) -> TorchDraft:
        """The rounds of a device, and those with proposals."""
        started = Mark(self._device)
        committed = self._target.cache.rows + 1
        if self._rounds is not None:
            recorded = self._rounds.draft(chain, sampling, self._anchor, self._pending)
            if recorded is not None:
                return recorded
            self._settle()
        if chain <= 0 or not self._pending.tokens:
            return TorchDraft(self._alone.fill_(self._anchor), self._nothing, None, sampling.seed, started, started)
        noise = self._noise_of(committed, chain + 1, sampling)
        counts = self._said.counts(sampling)
        if self._program is not None and counts is None:
            tokens, p = self._program(*self._pending.take(), chain, sampling, noise, worth)
        else:
            tokens, p = propose(self._head, *self._catch_up(), chain, sampling, noise, counts, worth)
        noise = None if noise is None else noise[: len(tokens)]
        return TorchDraft(tokens, p, noise, sampling.seed, started, Mark(self._device))

    def _noise_of(self, position: int, rows: int, sampling: Sampling) -> Tensor | None:
        """Noise [rows, V] of the positions from `position` on; None: greedy."""
        if sampling.temperature == 0.0:
            return None
        return self._noise.gumbel(sampling.seed, range(position, position + rows))

    def verify(self, draft: TorchDraft, sampling: Sampling) -> Verdict:
        """One target pass over the anchor and the drafted tokens; see Backend."""
        assert self._anchor is not None
        with self._inference:
            lines, started, ended, taps = self._judge(draft, sampling)
        verdict = verdict_of(lines, draft.started.until(draft.ended), started.until(ended))
        self._verified = (taps, verdict)  # for `commit`
        return verdict

    def _judge(self, draft: TorchDraft, sampling: Sampling) -> tuple[list[list[float]], Mark, Mark, Tensor | None]:
        """The table of `verdict_of`, when the pass began and ended, and its taps, where they are ours."""
        if self._rounds is not None:
            recorded = self._rounds.verify(draft, sampling, self._anchor, self._pending)
            if recorded is not None:
                return *recorded, None
            self._settle()
        started = Mark(self._device)
        target, chain = self._target, draft.chain
        x, taps = target(draft.tokens)
        logits = target.logits(x)
        if (counts := self._said.counts(sampling)) is not None:
            logits = penalised(logits, counts.rows(draft.tokens[1:]), sampling)
        noise = draft.noise
        if (noise is None) != (sampling.temperature == 0.0) or draft.seed != sampling.seed or draft.chain == 0:
            noise = self._noise_of(target.cache.rows + 1, chain + 1, sampling)
        drafted = draft.tokens.roll(-1)  # row i judges drafted[i]; what the bonus row judges is not looked at
        said = judge(logits, noise, drafted, sampling)
        table = torch.cat((said, drafted[:, None].float(), draft.p[:, None]), -1)
        ended = Mark(self._device)
        return table.tolist(), started, ended, taps  # host sync

    def commit(self, accepted: int, anchor: int) -> None:
        """Keep the anchor's row and those of drafted[:accepted]; see Backend."""
        assert self._verified is not None and 0 <= accepted <= len(self._verified[1].drafted)
        taps, verdict = self._verified
        drafted = verdict.drafted
        self._anchor, self._verified = anchor, None
        self._said.add([*drafted[:accepted], anchor])
        if self._rounds is not None and self._rounds.live:
            with torch.inference_mode():
                self._rounds.commit(accepted, anchor, drafted, verdict.chosen)
            return
        self._target.cache.advance(accepted + 1)
        if self._head is not None:
            kept = taps if accepted == len(drafted) else taps[: accepted + 1]
            self._pending.add(kept, [*drafted[:accepted], anchor])
            if len(self._pending.tokens) >= PENDING_ROWS:
                self._catch_up()
