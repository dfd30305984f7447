"""A pair is assembled from options: templates, stops, prompts; what cannot be is refused in words."""

from __future__ import annotations

import pytest

from eagle3chat.engine.errors import BackendError, BundleError, Eagle3Error, SettingError, TemplateError
from eagle3chat.engine.pair import Pair, open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say


def pair(**options: object) -> Pair:
    return open_pair(PairOptions(backend="scripted", **options))  # type: ignore[arg-type]


def say(*texts: str, raw: bool = False) -> Say:
    roles = ("user", "assistant")
    messages = tuple(Message(roles[i % 2], text) for i, text in enumerate(texts))  # type: ignore[arg-type]
    return Say(messages, Controls(), raw=raw)


def spelt(opened: Pair, ids: list[int]) -> str:
    """The prompt as text, control tokens shown."""
    tokenizer = opened.codec._tokenizer
    return tokenizer.decode(ids, skip_special_tokens=False)


def test_the_template_wraps_a_turn() -> None:
    opened = pair()
    prompt = spelt(opened, opened.prompt_ids(say("Hello")))
    assert prompt.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")


def test_affixes_wrap_every_turn_and_close_replies_with_the_stop_token() -> None:
    opened = pair(chat_prefix="<Q>", chat_suffix="<A>")
    assert opened.template.name == "affixes"
    assert spelt(opened, opened.prompt_ids(say("one", "two", "three"))) == "<Q>one<A>two<|im_end|>\n<Q>three<A>"
    named = pair(chat_prefix="<Q>", chat_suffix="<A>", stop_tokens=("<|endoftext|>",))
    assert spelt(named, named.prompt_ids(say("1", "2", "3"))) == "<Q>1<A>2<|endoftext|>\n<Q>3<A>"


def test_a_raw_prompt_has_no_template_and_its_control_tokens_are_meant() -> None:
    opened = pair()
    end = opened.codec.id_of("<|im_end|>")
    assert end in opened.prompt_ids(say("a<|im_end|>", raw=True))
    assert spelt(opened, opened.prompt_ids(say("a<|im_end|>", raw=True))) == "a<|im_end|>"
    turned = opened.prompt_ids(say("a<|im_end|>"))
    assert turned.count(end or -1) == opened.prompt_ids(say("a")).count(end or -1), "typed by the user it stays text"


def test_bos_comes_once() -> None:
    opened = pair(bos_id=0)
    for prompt in (say("Hello"), say("Hello", raw=True), say("<|endoftext|>Hello", raw=True)):
        ids = opened.prompt_ids(prompt)
        assert ids[0] == 0 and ids.count(0) == 1


def test_stops_come_from_flags_before_the_bundle() -> None:
    end, im_end = 0, 2
    assert pair().stops.ids == {end, im_end}
    assert pair(stop_tokens=()).stops.ids == {im_end}
    assert pair(stop_ids=(end,), stop_tokens=()).stops.ids == {end}
    assert pair(stop_ids=(), stop_tokens=("<|endoftext|>",)).stops.ids == {end}
    opened = pair(stop_strings=("\n\n",))
    assert opened.stops.strings == ("\n\n",)
    assert opened.info.stops == ("<|endoftext|>", "<|im_end|>", "\n\n")


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"stop_ids": (999999,)}, SettingError, "Stop id 999999 is outside the vocabulary"),
        ({"stop_tokens": ("<nope>",)}, SettingError, "'<nope>' is not one token"),
        ({"stop_strings": ("",)}, SettingError, "stop string is empty"),
        ({"template": "nope"}, TemplateError, "nope"),
        ({"context": 1}, SettingError, "context of 1"),
    ],
)
def test_bad_options_are_refused_in_words(options: dict[str, object], kind: type[Eagle3Error], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        pair(**options)
    assert caught.value.fix


def test_unknown_backends_and_missing_bundles_are_refused_in_words(tmp_path: object) -> None:
    with pytest.raises(BundleError, match="no bundle was named"):
        open_pair(PairOptions())
    with pytest.raises(BundleError) as caught:
        open_pair(PairOptions(bundle=f"{tmp_path}/none"))
    assert caught.value.fix


def test_what_a_bundle_cannot_do_is_refused(tmp_path: object) -> None:
    from pathlib import Path

    from tiny import tiny_bundle

    bundle = tiny_bundle(Path(str(tmp_path)))
    with pytest.raises(SettingError, match="context of 99999999 positions is above"):
        open_pair(PairOptions(bundle=str(bundle), context=99999999))
    with pytest.raises(BackendError, match="no backend called 'abacus'"):
        open_pair(PairOptions(bundle=str(bundle), backend="abacus"))
