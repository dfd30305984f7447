"""Keys of the settings file: what is refused in which words, and how keys are named and spelled."""

from __future__ import annotations

import string

import pytest
from textual.keys import _character_to_key
from textual.widgets import Input, TextArea

from eagle3chat.engine.errors import SettingError
from eagle3chat.key_map import USUAL, KeyMap, checked_keys, named, spelled
from eagle3chat.key_table import BOX_KEYS, PLACES, PROMPT_KEYS, TOGETHER

ROWS = [row for place in PLACES for row in place.rows]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"chat.none": "f2"}, "unknown id, 'chat.none'.*eagle3chat config lists"),
        ({"inspector.traces": "f10"}, "Did you mean inspector.trace"),
        ({"chat.copy": " "}, "The id chat.copy in the table .keys. has no key"),
        ({"chat.copy": "f10,f9"}, "The key F9 would be both chat.copy and chat.chain.longer"),
        ({"chat.copy": "enter"}, "both chat.copy and prompt.send"),
        ({"chat.copy": "ctrl+p"}, "both chat.commands and chat.copy"),
        ({"chat.copy": "x"}, "The key x of chat.copy is one to write with"),
        ({"chat.copy": "space"}, "one to write with"),
        ({"chat.copy": "shift+a"}, "one to write with"),
        ({"chat.copy": "ctrl+y"}, "The key ctrl.y of chat.copy is needed by the prompt's editor"),
        ({"prompt.send": "ctrl+x"}, "needed by the prompt's editor"),
        ({"chat.top": "up"}, "needed by the prompt's editor"),
        ({"sessions.rename": "ctrl+a"}, "needed by the box to write in"),
        ({"sessions.fork": "n"}, "one to write with"),
        ({"find.go": "?"}, "The key . of find.go is one to write with"),
        ({"sessions.rename": "ctrl+n"}, "The key ctrl.n would be both sessions.rename and sessions.fork"),
        ({"trace.down": "k"}, "The key k would be both trace.down and trace.up"),
        ({"inspector.again": "/"}, "The key / would be both inspector.find and inspector.again"),
        ({"help.up": "ctrl+q"}, "both chat.quit and help.up"),
        ({"chat.quit": "f2"}, "both chat.quit and chat.sessions"),
        ({"chat.commands": "f4"}, "both chat.commands and chat.inspect"),
        ({"replay.step": "f8"}, "both chat.chain.shorter and replay.step"),
        ({"commands.last": "down"}, "both commands.down and commands.last"),
        ({"race.close": "contrl+x"}, "There is no key 'contrl.x', as race.close has it"),
        ({"race.close": "ctrl+"}, "There is no key 'ctrl.'"),
        ({"race.close": "f25"}, "There is no key 'f25'"),
        ({"models.open": "ctrl+i"}, "For ctrl.i of models.open most terminals send Tab"),
        ({"chat.marks": "ctrl+["}, "most terminals send Esc"),
    ],
)
def test_a_wrong_key_map_is_refused_in_one_sentence_and_a_fix(keys, words):
    with pytest.raises(SettingError, match=words) as caught:
        checked_keys(keys)
    assert caught.value.message.count(". ") == 0 and caught.value.fix


def test_keys_may_change_places_and_be_the_same_in_different_places():
    swapped = {"sessions.rename": "ctrl+n", "sessions.fork": "ctrl+r", "trace.drafts": "x", "inspector.trace": "x"}
    keymap = checked_keys({**swapped, "chat.quit": "f10", "help.close": "ctrl+q"})
    assert keymap.keys("sessions.rename") == ("ctrl+n",)
    assert keymap.keys("help.close") == ("ctrl+q",)
    assert keymap.keys("trace.close") == ("escape", "q", "t")


def test_keys_are_written_as_the_screen_spells_them():
    keymap = checked_keys({"inspector.find": "?, Ctrl+F", "chat.copy": "F10,f10", "trace.close": "Esc", "help.up": ","})
    assert keymap.keys("inspector.find") == ("question_mark", "ctrl+f")
    assert keymap.keys("chat.copy") == ("f10",)
    assert keymap.keys("trace.close") == ("escape",)
    assert keymap.keys("help.up") == ("comma",)
    assert keymap.all_spelled("inspector.find") == "?, ctrl+f"


def test_characters_have_the_toolkits_names_and_are_spelled_as_themselves():
    for character in string.ascii_letters + string.digits + string.punctuation:
        assert named(character, "x") == _character_to_key(character)
        assert spelled(_character_to_key(character)) == character
    assert [spelled(key) for key in ("pageup", "ctrl+slash", "shift+f3", "space", "ctrl+home")] == [
        "PgUp",
        "ctrl+/",
        "shift+F3",
        "space",
        "ctrl+home",
    ]


def test_a_line_names_keys_by_their_ids():
    line = "<chat.chain.auto>/<chat.chain.shorter>/<chat.chain.longer> chain, <chat.top*> top, <none.such> <b>"
    assert USUAL.told(line) == "F7-F9 chain, F12, alt+up top, <none.such> <b>"
    assert (
        KeyMap((("chat.chain.longer", "f10"), ("chat.top", "alt+t")))
        .told(line)
        .startswith("F7/F8/F10 chain, alt+t top")
    )


def test_the_usual_keys_pass_their_own_check_and_ids_are_unique():
    assert len({row.id for row in ROWS}) == len(ROWS)
    assert checked_keys({row.id: row.keys for row in ROWS}).keys("chat.copy") == ("f6",)
    assert {row.id for rows in TOGETHER for row in rows} == {row.id for row in ROWS}


def test_what_editors_need_is_what_the_toolkits_editors_bind():
    assert {key for b in TextArea.BINDINGS for key in b.key.split(",")} == PROMPT_KEYS
    assert {key for b in Input.BINDINGS for key in b.key.split(",")} == BOX_KEYS
