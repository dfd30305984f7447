"""What goes into the engine: the pair to open, and the commands that a worker takes.

Frozen values only; they are pickled over the worker's pipe. Knows no tensors, no tokenizer, no screen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.sampling import Sampling

Role = Literal["system", "user", "assistant"]
DType = Literal["auto", "float32", "bfloat16", "int4"]
PieceKind = Literal["template", "content", "ids"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `token_ids` are the ids that the target itself wrote (a reply): spliced in as they are,
    so that the caches of the turn before fit. Without the stop token that ended it."""

    role: Role
    content: str
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a rendered prompt.

    "template" text may name control tokens; "content" is the user's and stays text whatever it spells;
    "ids" are token ids to splice in as they are.
    """

    kind: PieceKind
    text: str = ""
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PairOptions:
    """Which target and draft to open, and how. None means: what the bundle says."""

    bundle: str = ""  # a bundle directory; ignored by the scripted backend
    backend: str = "auto"  # "auto", "torch", "mlx", "scripted"
    device: str = "auto"
    dtype: DType = "auto"
    context: int | None = None  # positions
    threads: int | None = None
    template: str | None = None  # a built-in name or a file
    chat_prefix: str | None = None  # with chat_suffix: a template of one user turn, as the reference runner has it
    chat_suffix: str | None = None
    stop_ids: tuple[int, ...] | None = None
    stop_tokens: tuple[str, ...] | None = None
    stop_strings: tuple[str, ...] = ()
    bos_id: int | None = None  # -1: none
    check: bool = False  # ask the pair all about itself, see pair_check
    taps: tuple[int, ...] | None = None  # boundaries to feed the draft from, to try others
    script_seconds: float = 0.0  # scripted backend: how long a round takes


@dataclass(frozen=True, slots=True)
class Controls:
    """What a person may turn while a reply streams; taken up at the next round.

    With `auto` the chain finds its own length, and `chain` says nothing.

    Raises:
        SettingError: The chain is negative.
    """

    chain: int = 3
    sampling: Sampling = field(default_factory=Sampling)
    auto: bool = False

    def __post_init__(self) -> None:
        if self.chain < 0:
            raise SettingError(f"A chain of {self.chain} tokens does not exist.", "Use 0 (plain decoding) or more.")


@dataclass(frozen=True, slots=True)
class Say:
    """Decode a reply to `messages` (the whole conversation, the last one the user's, or a reply to go on with).

    `raw`: the content of the last message is the prompt as it is, without a template.
    """

    messages: tuple[Message, ...]
    controls: Controls
    max_new_tokens: int | None = None  # None: to the end of the context
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Adjust:
    """New controls, from the next round on."""

    controls: Controls


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the reply at the next round; what was emitted stays."""


@dataclass(frozen=True, slots=True)
class Close:
    """Free the pair and end the worker."""


Command = Say | Adjust | Cancel | Close
