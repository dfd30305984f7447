"""The command line's grammar: every command and flag, with its help.

Flags that were not given are None, so that the settings file and the bundle can speak. Values are only parsed
here; their ranges are checked where they are used. Imports nothing but argparse and the version.
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from eagle3chat import __version__
from eagle3chat.engine.errors import SettingError
from eagle3chat.session_arguments import add_config, add_replay, add_transcripts
from eagle3chat.theme_names import THEMES
from eagle3chat.train_arguments import add_eval, add_train


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage.

        Raises:
            SettingError: Always.
        """
        raise SettingError(f"{message[:1].upper()}{message[1:]}.", f"See {self.prog} --help.")


WORDS = ("words", "title", "system", "chat_prefix", "chat_suffix", "stop", "stop_token", "server", "server_model")
"""Arguments that are text, where names of files may be any bytes."""


def check_text(args: argparse.Namespace) -> None:
    """Raise SettingError where an argument that is text is not UTF-8."""
    for name in WORDS:
        value = getattr(args, name, None)
        for text in (value,) if isinstance(value, str) else value or ():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                what = name.replace("_", " ")
                raise SettingError(f"The argument {what} is not UTF-8 text.", "Spell it in UTF-8.") from error


def build_parser() -> Parser:
    """The parser of `eagle3chat` and its commands. Without a command `command` is "chat"."""
    parser = Parser(
        prog="eagle3chat",
        description="Chat with a local model in the terminal and watch EAGLE-3 speculative decoding work.",
        epilog="Without a command: the chat. Every flag is told by `eagle3chat COMMAND --help`.",
    )
    parser.set_defaults(command="chat")
    parser.add_argument("--version", action="version", version=f"eagle3chat {__version__}")
    _add_chat(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_run(_command(commands, "run", "decode one prompt: reply on stdout, report on stderr"))
    _add_bench(_command(commands, "bench", "compare chains with each other on a list of prompts"))
    _add_export(_command(commands, "export", "make a bundle of a target and a draft"))
    _add_info(_command(commands, "info", "what is in a bundle, and what memory a context needs"))
    add_train(_command(commands, "train", "train a draft for a target"))
    _add_eval(_command(commands, "eval", "measure which way of drafting has how much accepted"))
    transcripts = _command(commands, "transcripts", "list, search, show and export saved conversations")
    add_transcripts(transcripts, argparse.SUPPRESS)
    add_replay(_command(commands, "replay", "show a saved conversation as it went, without a model"))
    add_config(_command(commands, "config", "where the settings file is, and what may stand in it"))
    doctor = _command(commands, "doctor", "what works on this machine, what is off, and why")
    doctor.add_argument("--json", action="store_true", default=False, help="one JSON document instead")
    return parser


def _command(commands: Any, name: str, text: str) -> Parser:
    # SUPPRESS: a flag given before the command keeps its value when the command does not repeat it.
    parser: Parser = commands.add_parser(
        name, help=text, description=f"{text[:1].upper()}{text[1:]}.", argument_default=argparse.SUPPRESS
    )
    parser.set_defaults(command=name)
    return parser


def _add_chat(parser: Parser) -> None:
    _add_pair(parser)
    _add_template(parser)
    _add_sampling(parser, temperature="0 is greedy (default: 0.8)")
    _add_check(parser)
    _add_server(parser)
    group = parser.add_argument_group("conversation")
    _add_reply(group, "most tokens of a reply (default: to the end of the context)")
    group.add_argument("--resume", nargs="?", const="last", metavar="ID", help="go on with a saved conversation")
    group.add_argument("-c", "--continue", dest="resume", action="store_const", const="last", help="resume the last")
    group.add_argument("--private", "--no-transcript", dest="no_transcript", action="store_true", help="save nothing")
    group.add_argument("--accessible", action="store_true", help="no screen: lines that are only ever added")
    group.add_argument("--theme", choices=THEMES, metavar="NAME", help=f"colours: {', '.join(THEMES)}")
    group.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    group.add_argument("--marks", choices=("full", "subtle", "off"), help="how the reply shows the kinds of token")


def _add_run(parser: Parser) -> None:
    prompt = parser.add_argument_group("prompt (one of these, else standard input)").add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT")
    prompt.add_argument("--prompt-file", metavar="FILE")
    _add_pair(parser)
    _add_template(parser)
    parser.add_argument("--raw-prompt", action="store_true", help="the prompt as it is, without a template")
    _add_sampling(parser, temperature="0 is greedy (default: 0)")
    _add_reply(parser, "most tokens to generate (default: 128)")
    _add_check(parser)
    _add_server(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="one JSON document on stdout instead of text")
    output.add_argument("--trace", metavar="FILE", help="write the rounds as JSONL")
    output.add_argument("--quiet", action="store_true", help="no report on stderr")


def _add_bench(parser: Parser) -> None:
    _add_pair(parser)
    _add_template(parser)
    _add_sampling(parser, temperature="0 is greedy (default: 0)", chain=False)
    _add_reply(parser, "tokens of each reply at most (default: 96)")
    _add_server(parser, " (with --model: and the local pair)")
    group = parser.add_argument_group("measurement")
    group.add_argument("--chains", metavar="K,auto,...", type=_chains, help="chains to compare (default: 0,1,2,3,auto)")
    group.add_argument("--prompts", metavar="FILE", help="JSONL with id, kind, prompt (default: the packaged ones)")
    group.add_argument("--limit", metavar="N", type=int, help="only the first N prompts")
    group.add_argument("--repeat", metavar="R", type=int, help="decode everything R times (default: 1)")
    text = "instead: time per round and memory after prompts of so many tokens (chains 0,3 if none are named)"
    group.add_argument("--contexts", metavar="N,N,...", type=_integers, help=text)
    group.add_argument("--profile", action="store_true", help="also where a round's time goes, by its phases")
    group.add_argument("--peer", metavar="llama.cpp=PATH", help="also in turns: its llama-server, on the same prompts")
    group.add_argument("--peer-target", metavar="GGUF", help="the peer's target (default: the built-in one, in Q4_0)")
    group.add_argument("--peer-draft", metavar="GGUF", help="the peer's draft (default: the bundle's)")
    group.add_argument("--plot", metavar="FILE.svg", help="also draw cost, acceptance and speed-up")
    group.add_argument("--json", action="store_true", help="only the JSON document")


def _add_export(parser: Parser) -> None:
    parser.add_argument(
        "--target", required=True, metavar="PATH|ID", help="a GGUF file, a Hugging Face directory, or a hub id"
    )
    parser.add_argument("--draft", metavar="PATH|ID", help="an EAGLE-3 head's directory (default: the target alone)")
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="the bundle to write")
    parser.add_argument("--target-model", metavar="NAME", help="gemma4_31b: what its checkpoint leaves out")
    parser.add_argument(
        "--backend", choices=("torch", "mlx", "cuda"), help="for the record: a bundle is the same for all"
    )
    parser.add_argument("--name", metavar="NAME", help="the target's name as shown")
    parser.add_argument("--template", metavar="NAME|FILE", help="gemma4, chatml, llama3, model, or a Jinja file")
    parser.add_argument("--chain", metavar="K", type=int, help="default chain (default: 3)")
    parser.add_argument("--max-chain", metavar="K", type=int, help="longest chain")
    parser.add_argument("--max-prefill", metavar="N", type=int, help="tokens of a prefill chunk (default: 512)")
    parser.add_argument("--max-seq-len", metavar="N", type=int, help="longest context (default: the target's)")
    parser.add_argument("--taps", metavar="B,B,B", type=_integers, help="tap boundaries (default: what the draft says)")
    parser.add_argument(
        "--own-embedding", action=argparse.BooleanOptionalAction, help="use the draft's embedding, or the target's"
    )
    parser.add_argument(
        "--share-draft-embedding", action="store_true", help="use the target's embedding; refused where they differ"
    )
    parser.add_argument(
        "--copy-target", action="store_true", help="copy a target's files that need no change (default: link them)"
    )
    group = parser.add_argument_group("quantisation")
    group.add_argument("--quantize-target", choices=("int4", "int8"), help="the target; its embedding is 8-bit")
    group.add_argument("--group-size", metavar="G", type=int, help="of the target: 32, 64 or 128 (default: 32)")
    group.add_argument("--quantize-draft", action="store_true", help="the draft's: 4 bits, embedding and head 8")
    group.add_argument("--draft-bits", metavar="N", type=int, help="of that draft's linears: 4 or 8 (default: 4)")
    group.add_argument("--refine", action="store_true", help="fit 4-bit scales and biases to their codes; slower")
    group.add_argument(
        "--requantize", action="store_true", help="quantise anew what has no exact form, and print the error"
    )


def _add_eval(parser: Parser) -> None:
    _add_pair(parser)
    _add_template(parser)
    _add_reply(parser, "tokens of each reply at most (default: 96)")
    add_eval(parser.add_argument_group("measurement"))


def _add_info(parser: Parser) -> None:
    parser.add_argument("directory", nargs="?", metavar="DIR", help="a bundle (default: the built-in pair)")
    parser.add_argument("--context", metavar="N", type=int, help="positions to reckon with (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead")


def _add_pair(parser: Parser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", metavar="DIR", help="a bundle directory (default: the built-in pair)")
    group.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "int4"), help="weights")
    group.add_argument("--backend", choices=("auto", "torch", "mlx", "scripted"))
    group.add_argument("--device", metavar="NAME", help="cpu, cuda, ... (default: auto)")
    group.add_argument("--threads", metavar="N", type=int, help="CPU threads")
    group.add_argument("--context", metavar="N", type=int, help="positions of the context")
    group.add_argument("--settings", metavar="FILE", help="another settings file")


def _add_check(parser: Parser) -> None:
    parser.add_argument("--check", action="store_true", help="first ask the pair whether rows and taps are right")


def _add_server(parser: Parser, more: str = "") -> None:
    group = parser.add_argument_group("server", "The API key is read from EAGLE3CHAT_API_KEY or the settings file.")
    group.add_argument("--server", metavar="URL", help=f"an OpenAI-compatible server instead of a local model{more}")
    group.add_argument("--server-model", metavar="NAME", help="by the server's name (default: its only or first one)")
    group.add_argument(
        "--raw-template", action="store_true", help="render the prompt here, with --template, by /v1/completions"
    )


def _add_template(parser: Parser) -> None:
    group = parser.add_argument_group("template and stops")
    group.add_argument("--template", metavar="NAME|FILE", help="gemma4, chatml, llama3, model, or a Jinja file")
    group.add_argument("--chat-prefix", metavar="TEXT", help="before a user's turn, instead of a template")
    group.add_argument("--chat-suffix", metavar="TEXT", help="after it")
    group.add_argument("--stop-ids", metavar="ID,ID,...", type=_integers, help="stop token ids instead of the bundle's")
    group.add_argument("--stop-token", metavar="TOKEN", action="append", help="stop token instead of the template's")
    group.add_argument("--stop", metavar="STRING", action="append", help="a string that ends the reply")
    group.add_argument("--bos-id", metavar="ID", type=int, help="-1: none")
    group.add_argument("--system", metavar="TEXT", help="the system message")


def _add_sampling(parser: Parser, *, temperature: str, chain: bool = True) -> None:
    group = parser.add_argument_group("decoding")
    if chain:
        text = "drafted tokens a round; 0 is plain decoding; auto finds the best (default: auto)"
        group.add_argument("--chain", metavar="K|auto", type=_chain, help=text)
    group.add_argument("--temperature", metavar="T", type=float, help=temperature)
    group.add_argument("--top-k", metavar="N", type=int, help="0 is off")
    group.add_argument("--top-p", metavar="P", type=float, help="1 is off")
    group.add_argument("--min-p", metavar="P", type=float, help="0 is off")
    group.add_argument("--repetition-penalty", metavar="R", type=float, help="of prompt and reply; 1 is off")
    group.add_argument("--presence-penalty", metavar="P", type=float, help="of the reply, -2 to 2; 0 is off")
    group.add_argument("--frequency-penalty", metavar="F", type=float, help="the same, by count; 0 is off")
    group.add_argument("--seed", metavar="N", type=int, help="of the noise (default: drawn and reported)")
    group.add_argument("--sharpness", metavar="S", type=float, help="of the draft's proposals; never changes the text")


def _add_reply(parser: Any, text: str) -> None:
    parser.add_argument("--max-new-tokens", metavar="N", type=int, help=text)


def _chain(text: str) -> int | str:
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor auto") from None


def _chains(text: str) -> tuple[int | str, ...]:
    return tuple(_chain(part.strip()) for part in text.split(",") if part.strip())


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 0,2,3") from None
