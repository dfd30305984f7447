"""The picker of models, and the panel of parameters: by their keys, and what they leave in the transcript."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from driving import CONTROLS, running
from fake_worker import INFO, FakeWorker, whole_reply

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.events import Failed, Loading, Ready
from eagle3chat.engine.requests import Controls, PairOptions
from eagle3chat.engine.sampling import Sampling
from eagle3chat.models import Model
from eagle3chat.transcript import Transcript, load
from eagle3chat.transcript_codec import Setup
from eagle3chat.ui.parameters import FIELDS, Parameters, parsed, texts
from eagle3chat.ui.screens.models import Models
from eagle3chat.ui.screens.parameters import ParameterPanel

SMALL = Model(Path("/bundles/small"), "Small", "a draft", 1000)
LARGE = Model(Path("/bundles/large"), "Large [b]", "", 5_000_000)
ODD = Model(Path("/bundles/odd"), "Odd", problem="/bundles/odd: is empty.")
OTHER = replace(INFO, model="Large", max_chain=2, default_chain=2)


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three bundles; what is remembered."""
    remembered: list[str] = []
    known = {model.path: model for model in (SMALL, LARGE, ODD)}
    monkeypatch.setattr(Models.__init__, "__defaults__", (lambda: list(known.values()),))
    for where in ("eagle3chat.ui.session_actions", "eagle3chat.ui.screens.models"):
        monkeypatch.setattr(f"{where}.model_at", lambda path: known.get(path, Model(path, "x", problem="no bundle.")))
    monkeypatch.setattr("eagle3chat.ui.session_actions.remember", remembered.append)
    return remembered


class Fleet:
    """All workers that were made."""

    def __init__(self) -> None:
        self.workers: list[FakeWorker] = []

    def __call__(self, pair, on_event):
        self.workers.append(FakeWorker(pair, on_event))
        self.workers[-1].at_start = [Ready(OTHER if "large" in pair.bundle else INFO)]
        return self.workers[-1]


async def test_switching_keeps_the_conversation(tmp_path, found):
    fleet = Fleet()
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        driver.app.link._factory = fleet
        old = driver.worker
        await driver.say("hello")
        await driver.emit(*whole_reply("there"))
        await driver.say("/models")
        await driver.until(lambda: "Large [b]" in "".join(driver.lines()))
        await driver.pilot.press(*"large", "enter")
        await driver.until(lambda: driver.app.chat.info == OTHER)
        assert old.calls[-1] == "close" and fleet.workers[0].options.bundle == "/bundles/large"
        assert found == ["/bundles/large"]
        old.emit(Failed("a late word of the old one", "", fatal=True))
        await driver.pilot.pause()
        assert driver.app.chat.phase == "idle" and driver.app.chat.chain == 2
        await driver.say("again")
        (said,) = fleet.workers[0].said
        assert [(m.content, m.token_ids) for m in said.messages] == [
            ("hello", None),
            ("there", None),
            ("again", None),
        ]
        driver.worker = fleet.workers[0]
        await driver.emit(*whole_reply("yes", chain=2))
        path = driver.app.record.transcript.path
        driver.app.record.close()
    past = load(path)
    assert (past.pair.model, past.pair.bundle, past.header.pair.model) == ("Large", "/bundles/large", INFO.model)


async def test_what_cannot_be_opened_is_told_and_nothing_happens():
    async with running() as driver:
        await driver.say("/models")
        await driver.until(lambda: "Large [b]" in "".join(driver.lines()))
        await driver.pilot.press("down", "down", "enter")
        assert driver.line_with("/bundles/odd: is empty.")
        await driver.pilot.press(*"/no/such", "enter")
        await driver.until(lambda: any("no bundle." in line for line in driver.lines()))
        await driver.pilot.press("escape")
        await driver.say("/models /bundles/odd")
        assert "is empty" in driver.notice
        assert driver.app.chat.info == INFO and "close" not in driver.worker.calls


@pytest.mark.parametrize("private", [False, True])
async def test_a_path_can_be_typed_and_loading_is_shown(found, tmp_path, private):
    fleet = Fleet()
    async with running(transcript=None if private else Transcript.create(tmp_path)) as driver:
        driver.app.link._factory = fleet
        await driver.say("/models /bundles/small")
        await driver.until(lambda: bool(fleet.workers))
        await driver.until(lambda: driver.app.chat.phase == "idle")
        assert found == ([] if private else ["/bundles/small"]), "a private chat leaves no note"
        await driver.app.host.give_up()
        fleet.workers[0].emit(Loading("reading weights", 0.5))
        await driver.until(lambda: "reading weights" in driver.lines()[0])
        assert "50 %" in driver.lines()[0]


async def test_not_while_a_reply_streams():
    async with running() as driver:
        await driver.say("hello")
        await driver.emit(*whole_reply("one two three four five six")[:3])
        await driver.say("/models /bundles/large")
        assert "A reply is streaming" in driver.notice and "close" not in driver.worker.calls


async def test_the_panel(tmp_path):
    fleet = Fleet()
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        driver.app.link._factory = fleet
        await driver.say("/params")
        await driver.until(lambda: isinstance(driver.app.screen, ParameterPanel))
        await driver.pilot.press(*"0.25", "down", *"40", *["down"] * 7, *"99", "enter")
        await driver.until(lambda: not isinstance(driver.app.screen, ParameterPanel))
        assert driver.app.chat.controls == Controls(3, Sampling(temperature=0.25, top_k=40, seed=7))
        await driver.say("hello")
        assert driver.worker.said[0].max_new_tokens == 99
        await driver.emit(*whole_reply("there"))
        await driver.say("/params")
        await driver.pilot.press(*["up"] * 2, *"gemma4", "down", *"Be\\nkind", "enter")
        await driver.until(lambda: len(fleet.workers) == 1 and driver.app.chat.phase == "idle")
        assert fleet.workers[0].options == PairOptions(template="gemma4")
        assert driver.app.chat.system == "Be\nkind"
        await driver.say("/params")
        await driver.pilot.press(*"2", "escape")
        assert driver.app.chat.controls.sampling.temperature == 0.25
        path = driver.app.record.transcript.path
        driver.app.record.close()
    past = load(path)
    assert past.setup == Setup(99, "gemma4")
    assert (past.system, past.controls) == ("Be\nkind", Controls(3, Sampling(temperature=0.25, top_k=40, seed=7)))


async def test_a_wrong_field_is_named_and_the_panel_stays():
    async with running() as driver:
        await driver.say("/params")
        await driver.pilot.press(*["down"] * 9, *"9", "down", "enter")
        assert driver.line_with("chain: A chain of 9 is longer")
        assert driver.app.focused.id == "field-chain"
        await driver.pilot.press("escape")
        assert driver.app.chat.controls == CONTROLS


def test_the_form_is_the_values_and_back() -> None:
    before = Parameters(Controls(2, Sampling(temperature=0.123456789, seed=2**40), True), Setup(), "a\\n\nb\\")
    form = texts(before)
    assert set(form) == {field.name for field in FIELDS}
    assert parsed(before, form, INFO) == before
    every = {
        "temperature": "1",
        "top_k": "5",
        "top_p": ".9",
        "min_p": "0.1",
        "seed": "3",
        "repetition": "1.1",
        "presence": "0.5",
        "frequency": "-1",
        "max_new_tokens": "12",
        "chain": "0",
        "template": " llama3 ",
        "system": r"x\\n\ny",
    }
    sampling = Sampling(1.0, 5, 0.9, 0.1, 3, repetition=1.1, presence=0.5, frequency=-1.0)
    assert parsed(before, every, INFO) == Parameters(Controls(0, sampling), Setup(12, "llama3"), "x\\n\ny")
    assert parsed(before, every | {"chain": "AUTO", "max_new_tokens": "", "template": ""}, INFO).setup == Setup()


@pytest.mark.parametrize(
    ("name", "text", "label"),
    [
        ("temperature", "hot", "temperature"),
        ("temperature", "-1", "temperature"),
        ("top_p", "2", "top-p"),
        ("seed", "1.5", "seed"),
        ("max_new_tokens", "0", "max tokens"),
        ("chain", "-1", "chain"),
        ("chain", "x", "chain"),
    ],
)
def test_what_is_refused(name: str, text: str, label: str) -> None:
    before = Parameters(CONTROLS, Setup())
    with pytest.raises(SettingError, match=f"^{label}: "):
        parsed(before, texts(before) | {name: text}, INFO)
