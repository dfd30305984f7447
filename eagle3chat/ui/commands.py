"""The slash commands: their names, their arguments, and what they do to the controls. Knows no widget."""

from __future__ import annotations

from dataclasses import dataclass, replace

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.events import Info
from eagle3chat.engine.requests import Controls
from eagle3chat.engine.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command."""

    name: str
    argument: str  # as shown in the help, in brackets where it may be left out; empty: takes none
    help: str
    key: str = ""  # the ids of keys that do the same or nearly so


_CHAIN = "<chat.chain.auto>/<chat.chain.shorter>/<chat.chain.longer>"
COMMANDS = (
    Command("chain", "N|auto", "Draft N tokens a round; 0 decodes plainly; auto finds the best", _CHAIN),
    Command("temp", "X", "Temperature; 0 is greedy", "<chat.temperature.down>/<chat.temperature.up>"),
    Command("topp", "X", "Keep the most probable tokens that make up X of the mass; 1 is off"),
    Command("topk", "N", "Keep the N most probable tokens; 0 is off"),
    Command("minp", "X", "Keep tokens with at least X of the largest probability; 0 is off"),
    Command("penalty", "KIND X", "Penalty of repetition (1 is off), presence or frequency (0 is off)"),
    Command("seed", "N", "Seed of the noise; the same seed gives the same reply"),
    Command("system", "[TEXT]", "System message from the next message on; empty removes it"),
    Command("marks", "", "Marks of token kinds in the reply: full, subtle, off", "<chat.marks>"),
    Command("inspect", "", "Step through the rounds of a reply", "<chat.inspect>"),
    Command("trace", "[N]", "The whole text of a reply with the marks of all its tokens"),
    Command("race", "[TEXT]", "Decode a prompt, or the last one, plainly and then with speculation"),
    Command("slow", "N", "Show N rounds a second, to watch them; 0 shows them as they come"),
    Command("thoughts", "", "Open or fold what the model thought before it answered"),
    Command("again", "", "Another reply to the last message, with a new seed; the old one is kept", "<chat.again>"),
    Command(
        "alternative", "[N]", "The next reply to the last message, or the one of that number", "<chat.alternative>"
    ),
    Command("continue", "", "Go on with a reply that was stopped or cut"),
    Command("edit", "[N]", "Write the last message anew, or the one of that number, and go on from there"),
    Command("delete", "", "Take the last message and its reply away"),
    Command("undo", "", "Take the last /delete back, or the last message that was written anew"),
    Command("fork", "[N]", "Go on in a copy of this conversation, or of its first N messages"),
    Command("stop", "", "Stop the reply; what came stays", "<chat.stop>"),
    Command(
        "copy", "[code [N]|all]", "Copy the last reply as Markdown source, a code block, or everything", "<chat.copy>"
    ),
    Command("export", "[FILE]", "Write the conversation as .html with its rounds, .md or .json"),
    Command("find", "TEXT", "Show the last turn with a text; the same again shows the one before"),
    Command("top", "", "Show the beginning of the last reply", "<chat.top>"),
    Command("editor", "", "Write the draft in $EDITOR", "<chat.editor>"),
    Command("sessions", "[WORDS]", "Saved conversations: search, open, rename, fork, delete", "<chat.sessions>"),
    Command("title", "[TEXT]", "Name this conversation; empty: by its first message again"),
    Command("models", "[PATH]", "Choose another model; the conversation stays"),
    Command("params", "", "All parameters of this conversation in one panel"),
    Command("theme", "[NAME]", "Colours of the screen; without a name: choose from all"),
    Command("mouse", "on|off", "Take the mouse, or leave it to the terminal and its own selection"),
    Command("new", "", "Begin a new conversation", "<chat.new>"),
    Command("restart", "", "Start the worker again; the conversation stays", "<chat.restart>"),
    Command("help", "", "Keys, commands, and what the figures mean", "<chat.help>"),
    Command("quit", "", "Leave", "<chat.quit>"),
)
_BY_NAME = {command.name: command for command in COMMANDS}
_PENALTIES = ("repetition", "presence", "frequency")


@dataclass(frozen=True, slots=True)
class Call:
    """A slash command as it was typed."""

    command: Command
    argument: str


def is_command(text: str) -> bool:
    """Whether a line from the prompt is meant as a command: a slash and a letter, on one line."""
    return text[:1] == "/" and text[1:2].isalpha() and "\n" not in text and "/" not in text[1:].split(" ", 1)[0]


def parse(text: str) -> Call:
    """The command in `/name argument`.

    Raises:
        SettingError: There is no such command, or its argument is missing or too much.
    """
    name, _, argument = text[1:].partition(" ")
    command = _BY_NAME.get(name.lower())
    argument = argument.strip()
    if command is None:
        near = [known for known in _BY_NAME if known.startswith(name.lower())]
        if len(near) == 1:
            command = _BY_NAME[near[0]]
        else:
            raise SettingError(f"There is no command /{name}.", "/help lists them.")
    if command.argument[:1] not in ("", "[") and not argument:
        raise SettingError(f"/{command.name} needs a value.", f"Write /{command.name} {command.argument}.")
    if argument and not command.argument:
        raise SettingError(f"/{command.name} takes no value.", f"Write /{command.name}.")
    return Call(command, argument)


def changed(controls: Controls, name: str, argument: str, info: Info | None) -> Controls | None:
    """The controls after a command that sets one of them; None: the command sets none.

    Raises:
        SettingError: The argument is no number, or outside its range.
    """
    sampling = controls.sampling
    match name:
        case "chain":
            if argument.lower() == "auto":
                return with_auto(controls, info)
            return replace(controls, chain=checked_chain(_whole(name, argument), info), auto=False)
        case "temp":
            return replace(controls, sampling=replace(sampling, temperature=_real(name, argument)))
        case "topp":
            return replace(controls, sampling=replace(sampling, top_p=_real(name, argument)))
        case "minp":
            return replace(controls, sampling=replace(sampling, min_p=_real(name, argument)))
        case "topk":
            return replace(controls, sampling=replace(sampling, top_k=_whole(name, argument)))
        case "penalty":
            return replace(controls, sampling=_with_penalty(sampling, argument))
        case "seed":
            return replace(controls, sampling=replace(sampling, seed=_whole(name, argument)))
        case _:
            return None


def checked_chain(chain: int, info: Info | None) -> int:
    """A chain that the pair can draft.

    Raises:
        SettingError: It is negative, too long, or there is no draft.
    """
    if chain < 0:
        raise SettingError(f"A chain of {chain} tokens does not exist.", "Use 0 (plain decoding) or more.")
    if info is None or (chain <= info.max_chain and not info.fixed_chain):
        return chain
    _refuse_fixed(info)
    if info.max_chain == 0:
        raise SettingError("Speculation is unavailable.", info.unavailable)
    raise SettingError(f"A chain of {chain} is longer than this draft can do.", f"Use 0 to {info.max_chain}.")


def with_auto(controls: Controls, info: Info | None) -> Controls:
    """The controls with a chain that finds its own length.

    Raises:
        SettingError: There is no draft.
    """
    if info is not None and info.max_chain == 0:
        _refuse_fixed(info)
        raise SettingError("Speculation is unavailable.", info.unavailable)
    return replace(controls, auto=True)


def _refuse_fixed(info: Info) -> None:
    if info.fixed_chain:
        raise SettingError("The chain cannot be set.", f"{info.fixed_chain}.")


def _with_penalty(sampling: Sampling, argument: str) -> Sampling:
    """The sampling under "KIND X"; the kind may be shortened."""
    short, _, text = argument.partition(" ")
    kinds = [kind for kind in _PENALTIES if kind.startswith(short.lower())]
    if len(kinds) != 1 or not text:
        raise SettingError(f"/penalty takes a kind and a number, not {argument!r}.", "Write /penalty repetition 1.1.")
    value = _real("penalty", text.strip())
    match kinds[0]:
        case "repetition":
            return replace(sampling, repetition=value)
        case "presence":
            return replace(sampling, presence=value)
        case _:
            return replace(sampling, frequency=value)


def _whole(name: str, argument: str) -> int:
    try:
        return int(argument)
    except ValueError:
        raise SettingError(f"/{name} takes a whole number, not {argument!r}.") from None


def _real(name: str, argument: str) -> float:
    try:
        return float(argument)
    except ValueError:
        raise SettingError(f"/{name} takes a number, not {argument!r}.") from None
