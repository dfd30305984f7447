"""Lists and code on screen: one widget each, rows that hang, colours, selection."""

from driving import running
from fake_worker import whole_reply

from eagle3chat.ui.widgets.code import Code
from eagle3chat.ui.widgets.settled import Listing

LONG = "word " * 30


async def say(driver, text):
    await driver.say("go")
    await driver.emit(*whole_reply(text))
    await driver.coloured()
    await driver.pilot.pause()


async def test_a_list_of_many_items_is_one_widget_and_hangs():
    async with running((60, 40)) as driver:
        await say(driver, "\n".join(f"{n}. item **{n}** {LONG if n == 3 else ''}" for n in range(1, 13)))
        column = driver.app.stage.conversation.column
        assert [type(w) for w in column.children if isinstance(w, Listing)] == [Listing]
        assert driver.line_with(" 1. item 1").index("item") == driver.line_with("12. item").index("item")
        rows = [line for line in driver.lines() if "word" in line]
        assert len(rows) > 2
        assert {row.index("word") for row in rows[1:]} == {rows[0].index("item")}
        assert rows[0].strip().startswith("3. item 3 word")


async def test_code_breaks_its_long_lines_and_has_colours():
    async with running((60, 40)) as driver:
        await say(driver, f"```python\ndef f():\n    # {LONG}\n    return 'a'\n```")
        code = driver.app.query_one(Code)
        shown = " ".join(" ".join(driver.lines()).split())
        assert f"# {LONG.strip()} return 'a'" in shown
        strip = code.render_line(1)
        styles = {segment.text: segment.style for segment in strip}
        assert styles["def"].color != styles["():"].color
        assert styles["def"].bgcolor == styles["  "].bgcolor


async def test_a_theme_of_the_terminals_colours_colours_code_anew():
    async with running((60, 40)) as driver:
        await say(driver, "```python\ndef f(): pass\n```")
        code = driver.app.query_one(Code)
        before = [segment.style for segment in code.render_line(1) if segment.text == "def"]
        driver.app.theme = "ansi-dark"
        await driver.pilot.pause()
        await driver.coloured()
        after = [segment.style for segment in code.render_line(1) if segment.text == "def"]
        assert before != after
        assert after[0].bold


async def test_selection_of_a_list_and_of_code():
    async with running((60, 40)) as driver:
        await say(driver, "- one **two** three\n- four\n\n```\nsome code\nmore\n```")
        listing, code = driver.app.query_one(Listing), driver.app.query_one(Code)
        await driver.pilot.mouse_down(listing, offset=(8, 0))
        await driver.pilot.hover(listing, offset=(6, 1))
        await driver.pilot.mouse_up(listing, offset=(6, 1))
        assert driver.app.screen.get_selected_text() == "two three\n• fou"
        assert any(segment.text == "two" and segment.style.bgcolor for segment in listing.render_line(0))
        code.text_select_all()
        assert driver.app.screen.get_selected_text() == "some code\nmore"
