"""Templates from strangers: none gets out of the sandbox, runs on, or fills the memory."""

from __future__ import annotations

import resource
import time

import pytest

from eagle3chat.engine.errors import TemplateError
from eagle3chat.engine.requests import Message
from eagle3chat.templates import sandbox
from eagle3chat.templates.jinja_template import JinjaTemplate

MESSAGES = "{% for m in messages %}{{ m.content }}{% endfor %}"
ESCAPES = (
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ messages.append(1) }}",
    "{{ lipsum.__globals__['os'] }}",
    "{{ ('%s' % messages.__class__) }}",
    "{{ self._TemplateReference__context.environment.x() }}",
    "{{ raise_exception.__globals__['datetime'] }}",
    "{{ ''|attr('__class__')|attr('__mro__')|first }}",
    "{{ '{0.__class__.__mro__}'.format('')|upper }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends '/etc/passwd' %}",
)
BOMBS = (
    "{{ ('x' * 1000000000) | length }}",
    "{{ ([0] * 1000000000) | length }}",
    "{{ 9 ** 99999 }}",
    "{% set n = namespace(v=2) %}{% for i in range(60) %}{% set n.v = n.v * n.v %}{% endfor %}",
    "{% for i in range(9999) %}{% for j in range(9999) %}{% set k = i * j %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
    "{{ 'x'.center(1000000000) }}",
    "{{ 'x' | center(1000000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (100000000, 1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 100000000) }}",
    "{{ messages | tojson(indent=100000000) }}",
    "{% set n = namespace(v='xx') %}{% for i in range(60) %}{% set n.v = n.v + n.v %}{% endfor %}",
    "{% set ns = namespace(v='xx') %}{% for i in range(60) %}{% set x = ns.v ~ ns.v %}{% set ns.v = x %}{% endfor %}",
    "{{ ('x' * 999999) | replace('x', 'y' * 999999) }}",
    "{{ ('x' * 999999).replace('x', 'y' * 999999) }}",
    "{{ (('y' * 999999).join('x' * 999999)) | length }}",
    "{{ range(1000000000) | list | length }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
)


@pytest.fixture(autouse=True)
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 0.4)


@pytest.mark.parametrize("source", ESCAPES)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    try:
        template = JinjaTemplate(MESSAGES + source, name="x", special_tokens={})
    except TemplateError:
        return
    text = "".join(piece.text for piece in template.render([Message("user", "hi")]))
    assert "class" not in text.lower()
    assert text.removeprefix("hi").strip() in ("", "Undefined"), text


@pytest.mark.parametrize("source", BOMBS)
def test_no_bomb_goes_off(source: str) -> None:
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(TemplateError) as caught:
        JinjaTemplate(MESSAGES + source, name="x", special_tokens={})
    assert time.monotonic() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "KiB"
    assert len(str(caught.value)) < 500


def test_an_honest_template_has_time() -> None:
    loop = "{% for i in range(2000) %}{% if i % 2 %}{{ i }}{% endif %}{% endfor %}"
    JinjaTemplate(MESSAGES + loop + "{{ 'a'.center(20) ~ ('b' * 50) ~ '%05d' % 7 }}", name="x", special_tokens={})
