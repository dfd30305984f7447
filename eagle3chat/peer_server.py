"""One llama-server on loopback: started, asked for greedy replies by token ids, and ended.

Its times are its own: those of its clock between the first token and the last. Knows its HTTP interface
(`/health`, `/completion`), no pair.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.remote_json import count, inner, items, number
from eagle3chat.peer_program import DRAFT_KIND, SERVER, Program, last_line

LOADING_SECONDS = 600.0
REPLY_SECONDS = 3600.0
POLL_SECONDS = 0.1
END_SECONDS = 5.0
OLD = "Use a newer llama.cpp (mid 2026 or later), or measure --chains 0 alone."
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class PeerReply:
    """A reply of the peer."""

    token_ids: tuple[int, ...]  # without the token that ended it
    tokens: int  # the one that ended it included
    seconds: float  # from the first token to the last, so of one token less
    drafted: int
    accepted: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first one / seconds."""
        return (self.tokens - 1) / self.seconds


class PeerServer:
    """A process; it runs until `close`.

    Args:
        draft: A GGUF; None: plain decoding.
        chain: Tokens that it drafts.
        threads: Of one reply.
        context: Positions.

    Raises:
        SettingError: It does not start, or knows no such draft.
    """

    def __init__(
        self, program: Program, target: Path, draft: Path | None, chain: int, threads: int, context: int
    ) -> None:
        if draft is not None and not program.drafts:
            raise SettingError(f"This llama.cpp ({program.version}) knows no EAGLE-3 drafts.", OLD)
        self._url = f"http://{HOST}:{_free_port()}"
        command = [str(program.server), "-m", str(target), "--host", HOST, "--port", self._url.rpartition(":")[2]]
        command += ["-t", str(threads), "-c", str(context), "-np", "1"]
        if draft is not None:
            command += ["-md", str(draft), "--spec-type", DRAFT_KIND, "--spec-draft-n-max", str(chain)]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        except OSError as error:
            self._log.close()
            raise SettingError(f"{program.server} cannot be run: {error.strerror}.", "Check --peer.") from error
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def reply(self, prompt: Sequence[int], limit: int) -> PeerReply:
        """Decode greedily after a prompt, at most `limit` tokens; nothing is kept from the reply before.

        Raises:
            SettingError: It ended, or refuses.
        """
        body = {"prompt": list(prompt), "n_predict": limit, "temperature": 0, "cache_prompt": False}
        value = self._asked("/completion", {**body, "return_tokens": True, "stream": False})
        timings = inner(value, "timings")
        tokens, milliseconds = count(timings, "predicted_n"), number(timings, "predicted_ms")
        if not tokens or milliseconds is None:
            raise SettingError(f"{SERVER} tells no times of its replies.", OLD)
        drafted = count(timings, "draft_n") or 0
        return PeerReply(
            token_ids=tuple(token for token in items(value, "tokens") if isinstance(token, int)),
            tokens=tokens,
            seconds=max(milliseconds / 1e3, 1e-9),
            drafted=drafted,
            accepted=min(count(timings, "draft_n_accepted") or 0, drafted),
        )

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _wait(self) -> None:
        """Until it has loaded its model."""
        import httpx

        give_up = time.monotonic() + LOADING_SECONDS
        while time.monotonic() < give_up:
            if self._process.poll() is not None:
                raise self._ended()
            try:
                if httpx.get(f"{self._url}/health", timeout=POLL_SECONDS * 20, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass  # it does not listen yet
            time.sleep(POLL_SECONDS)
        raise SettingError(f"{SERVER} did not load its model in {LOADING_SECONDS:.0f} s.", "Check the GGUF files.")

    def _asked(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        import httpx

        try:
            response = httpx.post(self._url + path, json=body, timeout=REPLY_SECONDS, trust_env=False)
            value = response.json()
        except (httpx.HTTPError, ValueError) as error:
            if self._process.poll() is not None:
                raise self._ended() from error
            raise SettingError(f"{SERVER} broke off a reply ({type(error).__name__}).", "Try again.") from error
        if response.status_code != 200 or not isinstance(value, dict):
            words = inner(value, "error").get("message") if isinstance(value, dict) else ""
            raise SettingError(f"{SERVER} refuses a prompt with status {response.status_code}: {words}.", OLD)
        return value

    def _ended(self) -> SettingError:
        self._log.seek(0)
        said = last_line(self._log.read())
        return SettingError(f"{SERVER} ended with code {self._process.returncode}: {said}.", "Check its GGUF files.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
