"""The flags of the commands for saved conversations and for the settings file. Imports names alone."""

from __future__ import annotations

from typing import Any

from eagle3chat.theme_names import THEMES

ACTIONS = (
    ("list", "the saved conversations"),
    ("search", "those in which all words occur"),
    ("show", "print one"),
    ("path", "where one is saved"),
    ("rename", "give one a title"),
    ("delete", "move one into the trash folder"),
    ("undelete", "take one back out of it"),
    ("fork", "copy one, to go on from there"),
    ("export", "write one as Markdown, JSON or HTML"),
)


def add_transcripts(parser: Any, suppress: str) -> None:
    """The actions of `transcripts`; `suppress`: argparse.SUPPRESS."""
    parser.set_defaults(action="list", id=None)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    for name, text in ACTIONS:
        action = actions.add_parser(name, help=text, argument_default=suppress)
        action.set_defaults(action=name)
        if name == "search":
            action.add_argument("words", nargs="+", metavar="WORD", help='beginnings of words, or "a phrase"')
        elif name == "undelete":
            action.add_argument("id", nargs="?", default="last", metavar="ID", help="(default: deleted last)")
        elif name != "list":
            action.add_argument("id", metavar="ID", help='an id, its beginning, a file, or "last"')
        if name == "rename":
            action.add_argument("title", nargs="+", metavar="TITLE", help='"" takes the title away')
        if name == "fork":
            action.add_argument("--keep", type=int, metavar="N", default=None, help="only your first N messages")
        if name == "export":
            action.add_argument("--format", choices=("md", "json", "html"), default=None, help="(default: FILE's)")
            action.add_argument("-o", "--output", metavar="FILE", default=None, help="(default: standard output)")


def add_replay(parser: Any) -> None:
    """The flags of `replay`."""
    parser.add_argument("id", metavar="ID|FILE", help='a saved conversation, or "last"')
    parser.add_argument("--speed", type=float, metavar="X", default=1.0, help="times as fast as it was (default: 1)")
    parser.add_argument("--theme", choices=THEMES, metavar="NAME", help="colours: those of the chat")
    parser.add_argument("--marks", choices=("full", "subtle", "off"), help="how the reply shows the kinds of token")


def add_config(parser: Any) -> None:
    """The flags of `config`."""
    parser.add_argument("--init", action="store_true", default=False, help="write the file, unless there is one")
