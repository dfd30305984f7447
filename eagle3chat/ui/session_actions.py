"""What keys and commands do to conversations, models and parameters as a whole. The app mixes them in."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from eagle3chat.engine.errors import Eagle3Error, SettingError
from eagle3chat.models import model_at, remember
from eagle3chat.transcript import Transcript, default_directory, load
from eagle3chat.transcript_codec import Setup
from eagle3chat.transcript_store import fork
from eagle3chat.ui.actions import Parts
from eagle3chat.ui.link import Link
from eagle3chat.ui.parameters import Parameters
from eagle3chat.ui.record import Record


class SessionActions(Parts):
    """Sessions, models, parameters."""

    link: Link
    record: Record

    # Sessions

    def action_sessions(self) -> None:
        """Show the saved conversations."""
        self.sessions("")

    def sessions(self, words: str) -> None:
        """Show the saved conversations that hold these words."""
        from eagle3chat.transcript_index import TranscriptIndex  # shown seldom, and the start would wait for it
        from eagle3chat.ui.screens.sessions import Sessions

        current = self.record.transcript
        try:
            index = TranscriptIndex(current.path.parent if current else default_directory())
        except Eagle3Error as error:
            return self.complain(error)
        self.push_screen(Sessions(index, current, self.glyphs, words, keymap=self.keymap), self._open)

    def _open(self, path: Path | None) -> None:
        if path is not None:
            self.run_worker(self.attempt(self.open_session(path)), group="sessions")

    async def open_session(self, path: Path) -> None:
        """Go on with a saved conversation, on the model that is open.

        Raises:
            SettingError: A reply streams.
            TranscriptError: It cannot be read, or is open elsewhere.
        """
        current = self.record.transcript
        if current is not None and current.path == path:
            return
        self.chat.must_not_stream()
        if current is None:  # nothing is kept of this chat
            transcript, past = None, await asyncio.to_thread(load, path)
        else:
            transcript, past = await asyncio.to_thread(Transcript.resume, path)
        try:
            self.turns.leave()
            await self.host.open(transcript, past)
        except SettingError:  # a reply began meanwhile
            if transcript is not None:
                transcript.close()
            raise

    async def fork_session(self, argument: str) -> None:
        """Go on in a copy of the conversation, or of its first messages.

        Raises:
            SettingError: It is not in a file yet, or has not so many messages.
            TranscriptError: The copy cannot be written.
        """
        transcript, count = self.record.transcript, len(self.chat.exchanges)
        self.chat.must_not_stream()
        if transcript is None or not transcript.path.exists():
            raise SettingError("There is nothing to copy yet.", "Send a message first.")
        if argument and (not argument.isdecimal() or not 1 <= int(argument) <= count):
            raise SettingError(f"There are no {argument} messages.", f"Use 1 to {count}.")
        transcript.flush()
        path = await asyncio.to_thread(fork, transcript.path, int(argument) if argument else None)
        await self.open_session(path)
        self.stage.keys.tell("this is a copy; <chat.sessions> lists the other one as well")

    def name_session(self, text: str) -> None:
        """Name the conversation.

        Raises:
            SettingError: It is not in a file yet.
        """
        transcript = self.record.transcript
        if transcript is None or not transcript.path.exists():
            raise SettingError("There is nothing to name yet.", "Send a message first.")
        transcript.title(" ".join(text.split()))
        self.stage.keys.tell("named" if text else "called by its first message again")

    # Models

    def action_models(self) -> None:
        """Show the models to choose from."""
        from eagle3chat.ui.screens.models import Models  # shown seldom, and the start would wait for it

        self.push_screen(Models(self.link.options.bundle, self.glyphs, keymap=self.keymap), self._switch)

    def _switch(self, bundle: str | None) -> None:
        if bundle:
            self.run_worker(self.attempt(self.open_model(bundle)), group="worker")

    async def open_model(self, bundle: str) -> None:
        """Open another bundle; the conversation stays as text.

        Raises:
            SettingError: A reply streams, or there is no such bundle.
        """
        self.chat.must_not_stream()
        model = await asyncio.to_thread(model_at, Path(bundle))
        if model.problem:
            raise SettingError(model.problem)
        bundle = str(model.path)
        plain = replace(
            self.link.options,
            bundle=bundle,
            backend="auto" if self.link.options.backend == "scripted" else self.link.options.backend,
            template=None,
            chat_prefix=None,
            chat_suffix=None,
            stop_ids=None,
            stop_tokens=None,
            bos_id=None,
            taps=None,
        )  # what was said of templates and stops was said of the other model
        self.host.set_setup(replace(self.host.setup, template=None))
        self.record.bundle = bundle
        await self.host.give_up()
        await self.link.switch(plain)
        if self.record.transcript is not None:  # a private chat leaves no note
            await asyncio.to_thread(remember, bundle)

    # Parameters

    def action_params(self) -> None:
        """Show the parameters of the conversation."""
        from eagle3chat.ui.screens.parameters import ParameterPanel  # shown seldom, and the start would wait for it

        now = Parameters(self.chat.controls, self.host.setup, self.chat.system)
        self.push_screen(ParameterPanel(now, self.chat.info, self.keymap), self._apply)

    def _apply(self, wanted: Parameters | None) -> None:
        if wanted is None:
            return
        self.chat.keep_seed |= wanted.controls.sampling.seed != self.chat.controls.sampling.seed
        if wanted.controls != self.chat.controls:
            self.host.set_controls(wanted.controls)
        if wanted.system != self.chat.system:
            self.host.set_system(wanted.system)
        before = self.host.setup
        if wanted.setup.template != before.template:
            self.run_worker(self.attempt(self._with_template(wanted.setup)), group="worker")
        elif wanted.setup != before:
            self.host.set_setup(wanted.setup)

    async def _with_template(self, setup: Setup) -> None:
        self.chat.must_not_stream()
        self.host.set_setup(setup)
        await self.host.give_up()
        options = replace(self.link.options, template=setup.template, chat_prefix=None, chat_suffix=None)
        await self.link.switch(options)
