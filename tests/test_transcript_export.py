"""A conversation as HTML, Markdown and JSON: complete, and unable to do anything."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eagle3chat.cli import main
from eagle3chat.engine.events import Finished, Info, Round, Token, Usage
from eagle3chat.engine.requests import Controls
from eagle3chat.transcript import Transcript, load
from eagle3chat.transcript_html import page
from eagle3chat.transcript_plots import MOST_BARS, Places, by_place, by_round
from eagle3chat.transcript_text import document, markdown

BAD = "</style><script>alert(1)</script><img src=x onerror=y>\x1b[2J\u202e\"'&amp;"
INFO = Info(f"Model{BAD}", "D", "llama", "torch", "cpu", "int4", "chatml", 512, 8, 3, "", (), 1.0, 10)


def token(text: str, p: float | None = 0.5) -> Token:
    return Token(1, text, p, 0.25)


def bonus(index: int) -> Round:
    drafted = (token(" a"), token(" b"))
    return Round(index, 5, 2, 0.5, drafted, 2, token(" c", None), "bonus", (), " a b c", 0.02)


def corrected(index: int, own: str = " own") -> Round:
    drafted = (token(" x"), token(" no"), token(" far"))
    return Round(index, 9, 3, 0.5, drafted, 1, token(own, None), "correction", (), f" x{own}", 0.01)


def usage(rounds: list[Round]) -> Usage:
    emitted = sum(r.emitted for r in rounds)
    return Usage(5, 0, emitted, len(rounds), 3, 1, 1, (2, 2, 0), (2, 1, 0), (2, 2, 1), 0.1, 0.1, 0.2)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two replies to one message, and a broken one."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    transcript = Transcript.create()
    transcript.opened(INFO, Controls(3))
    transcript.system("Be **brief**.")
    transcript.user(f"Say {BAD}\nList<String>")
    for rounds in ([bonus(0)], [bonus(0), corrected(1, f" {BAD}")]):
        for r in rounds:
            transcript.round(r)
        transcript.reply(Finished("stop", BAD, "", usage(rounds)))
    transcript.user("more")
    transcript.round(corrected(0))
    transcript.close()
    return transcript.path


class Page(HTMLParser):
    """Tags, classes with their text, and whether all that was opened was closed."""

    VOID = ("meta", "line", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append((tag, dict(attrs).get("class") or ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1][1] if self.open else "", data))

    def of(self, kind: str) -> str:
        return "".join(text for name, text in self.texts if kind in name.split())


def test_the_page_holds_everything_and_does_nothing(path: Path) -> None:
    text = page(load(path))
    read = Page(text)
    assert not read.open
    assert not {"script", "img", "link", "iframe", "form", "object", "base"} & set(read.tags)
    assert {name for name, _ in read.attributes if name.startswith("on") or name in ("src", "href", "style")} == set()
    assert not set("\x1b\u202e") & set(text)
    assert "alert(1)</span>" not in text and "<script" not in text
    assert read.of("accepted").count(" a b") == 2 + 0
    assert "· b" not in text and "·b" in read.of("accepted")
    assert "own" in read.of("correction") and " c" in read.of("bonus")
    assert "✗·no" in read.of("rejected") and "(·far)" in read.of("unreached")
    assert "Be **brief**." in read.of("said") and "List<String>" in read.of("said")
    assert "reply 1 of 2, not chosen" in text and "broken off" in text


def test_the_policy_allows_the_style_and_nothing_else(path: Path) -> None:
    text = page(load(path))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "unsafe" not in policy and "http" not in text.replace("http-equiv", "")
    assert "url(" not in style and "@import" not in style


def bars(plot: str, kind: str = "bar") -> list[tuple[float, str]]:
    root = ElementTree.fromstring(plot)
    return [(float(r.get("height", "")), r[0].text or "") for r in root.iter("rect") if r.get("class") == kind]


def test_plot_by_place() -> None:
    places = Places.of([bonus(0), corrected(1), corrected(2)])
    assert places == Places((3, 3, 2), (3, 3, 0), (3, 1, 0))
    found = bars(by_place(places))
    assert [title for _, title in found] == [
        f"place {i + 1}: {a} of {j} judged accepted" for i, (a, j) in enumerate(((3, 3), (1, 3), (0, 0)))
    ]
    assert found[1][0] == pytest.approx(found[0][0] / 3, abs=0.1) and found[2][0] == 0
    assert by_place(Places.of([])) == "" and by_round([]) == ""


def test_plot_by_round() -> None:
    rounds = [bonus(0), corrected(1)]
    accepted, drafted = bars(by_round(rounds)), bars(by_round(rounds), "open")
    assert accepted[0][0] == pytest.approx(2 * accepted[1][0], abs=0.2)
    assert drafted[1][0] == pytest.approx(3 * accepted[1][0], abs=0.3)
    many = [bonus(i) for i in range(1000)]
    assert len(bars(by_round(many))) <= MOST_BARS
    ElementTree.fromstring(by_round(many))


def test_markdown_is_what_was_said(path: Path) -> None:
    text = markdown(load(path))
    assert text.startswith("# Say </style>")
    assert f"## you\n\nSay {BAD}\nList<String>\n" in text
    assert f"## model\n\na b c x {BAD}\n" in text
    assert text.endswith("## model\n\nx own\n\n*broken off*\n")


def test_json_holds_the_rounds(path: Path) -> None:
    read = json.loads(document(load(path)))
    first, second = read["exchanges"]
    assert first["chosen"] == 1 and len(first["replies"]) == 2
    assert first["replies"][1]["rounds"][1]["own_kind"] == "correction"
    assert second["replies"][0]["finished"] is None


@pytest.mark.parametrize(
    ("name", "flags", "begins"),
    [
        ("x.html", [], "<!DOCTYPE html>"),
        ("x.json", [], "{"),
        ("x.txt", [], "# Say"),
        ("x.txt", ["--format", "html"], "<!DOCTYPE html>"),
    ],
)
def test_export(path: Path, tmp_path: Path, name: str, flags: list[str], begins: str) -> None:
    assert main(["transcripts", "export", "last", "-o", str(tmp_path / name), *flags]) == 0
    assert (tmp_path / name).read_text().startswith(begins)


def test_export_to_stdout_and_to_nowhere(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcripts", "export", "last"]) == 0
    assert BAD in capsys.readouterr().out
    assert main(["transcripts", "export", "last", "-o", str(tmp_path / "none" / "x.md")]) == 2
    assert "cannot be written: no such file" in capsys.readouterr().err


def test_actions(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def out(*argv: str) -> str:
        assert main(["transcripts", *argv]) == 0
        return capsys.readouterr().out

    assert out("search", "list").splitlines()[1].strip().endswith("[List]…")
    assert "No saved conversation holds nothing here." in out("search", "nothing", "here")
    out("rename", path.stem, "my", "title")
    assert out("list").rstrip().endswith("2 turns  my title")
    copy = out("fork", "last", "--keep", "1").strip()
    assert copy != path.stem and len(out("list").splitlines()) == 2
    assert "trash" in out("delete", path.stem)
    assert len(out("list").splitlines()) == 1
    assert out("undelete").strip() == path.stem
    assert main(["transcripts", "undelete"]) == 2


def test_columns_have_letters_of_one_width_and_thinking_is_folded(tmp_path: Path) -> None:
    words = [
        "<think>",
        "Hm,",
        " code",
        "</think>",
        "See:\n",
        "```py\nx",
        " = 1\n",
        "```\n",
        "and\n",
        "| a |",
        " b |",
        "\nend",
    ]
    transcript = Transcript.create(tmp_path)
    transcript.opened(INFO, Controls(3))
    transcript.user("go")
    for at in range(0, len(words), 2):
        drafted, own = (token(words[at]),), token(words[at + 1], None)
        transcript.round(
            Round(at // 2, 5 + at, 1, 0.5, drafted, 1, own, "bonus", (), "".join(words[at : at + 2]), 0.02)
        )
    transcript.close()
    text = page(load(transcript.path))
    assert not Page(text).open
    bare = re.sub(r"<code>(.*?)</code>", r"[\1]", re.sub(r"</?span[^>]*>", "", text), flags=re.S)
    (reply,) = re.findall(r'<div class="reply">(.*?)</div>', bare, re.S)
    assert reply == "See:\n[```py\nx = 1\n```]\nand\n[| a | b |]\nend"
    assert '<summary>thought, 2 words</summary><div class="thought">Hm, code</div>' in bare
