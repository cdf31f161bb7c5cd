"""A person at the page: by mouse, or by keys alone."""

from typing import Any

import pytest

from tests.http.page.pages import until


class Mouse:
    """A person who clicks, and types only what is written."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def select(self, entity: str) -> None:
        self.page.click(f'#loom [data-id="{entity}"]')

    def approve(self) -> None:
        self.page.click('#needs .card.ask button:has-text("Approve")')

    def deny(self, note: str) -> None:
        self.page.click('#needs .card.ask input[aria-label="Note"]')
        self.page.keyboard.type(note)
        self.page.click('#needs .card.ask button:has-text("Deny")')

    def steer(self, text: str) -> None:
        self.page.click("#main .composer textarea")
        self.page.keyboard.type(text)
        self.page.click('#main .composer button:has-text("Steer")')

    def interrupt(self, why: str) -> None:
        self.page.click('#main button:has-text("Interrupt")')
        self.page.click("#dialog input[type=text]")
        self.page.keyboard.type(why)
        self.page.click('#dialog input[type="checkbox"]')
        self.page.click('#dialog button:has-text("Interrupt")')

    def fork(self, intent: str) -> None:
        self.page.click('[data-sequence="1"] button:has-text("Fork")')
        self.page.click("#dialog textarea")
        self.page.keyboard.type(intent)
        self.page.click('#dialog button:has-text("Fork")')

    def reward(self, value: str) -> None:
        self.page.click('[data-sequence="1"] button:has-text("Reward")')
        self.page.click("#dialog input")
        self.page.keyboard.type(value)
        self.page.click('#dialog button:has-text("Reward")')

    def resume(self, entity: str) -> None:
        self.page.click(f'#needs [data-entity="{entity}"] button:has-text("Resume")')

    def abandon(self, entity: str) -> None:
        self.page.click(f'#needs [data-entity="{entity}"] button:has-text("Abandon")')
        self.page.click('#dialog button:has-text("Abandon")')

    def filter(self, text: str) -> None:
        self.page.click("#loom input")
        self.page.keyboard.press("Control+a")
        self.page.keyboard.press("Delete")
        self.page.keyboard.type(text)

    def all_shown(self, word: str) -> None:
        self.page.click(f'#needs .many button:has-text("{word} all")')
        self.page.click(f'#dialog button:has-text("{word}")')
        self.page.wait_for_selector("#dialog", state="hidden")

    def stop(self, reason: str) -> None:
        self.page.click('#main button:has-text("Stop")')
        self.page.click("#dialog input")
        self.page.keyboard.type(reason)
        self.page.click('#dialog button:has-text("Stop")')


class Keys:
    """A person who has a keyboard only."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def write(self, text: str) -> None:
        self.page.keyboard.type(text)

    def confirm(self, *keys: str) -> None:
        """Press Enter in a dialog, which closes when its action is answered; until then it takes every key."""
        self.press(*keys, "Enter")
        self.page.wait_for_selector("#dialog", state="hidden")

    def until_focus(self, selector: str) -> None:
        until(lambda: self.page.evaluate(f"document.activeElement?.matches({selector!r})"))

    def select(self, entity: str) -> None:
        self.press("Escape", "/")
        self.until_focus("#loom input")
        self.press("Control+a")
        self.write(entity)
        self.press("Enter", "End", "Enter")
        until(lambda: entity in self.page.url)
        self.press("/", "Control+a", "Delete", "Escape")

    def approve(self) -> None:
        self.press("a")
        self.until_focus("#needs .card.ask")
        self.press("a")

    def deny(self, note: str) -> None:
        self.press("d")
        self.until_focus("#needs .card.ask")
        self.press("d")
        self.until_focus("#needs input")
        self.write(note)
        self.press("Enter")

    def steer(self, text: str) -> None:
        self.press("s")
        self.until_focus("#main .composer textarea")
        self.write(text)
        self.press("Enter", "Escape")

    def interrupt(self, why: str) -> None:
        self.press("i")
        self.until_focus("#dialog input[type=text]")
        self.write(why)
        self.confirm("Tab", "Space")

    def fork(self, intent: str) -> None:
        self.press("j", "f")
        self.until_focus("#dialog textarea")
        self.write(intent)
        self.confirm()

    def reward(self, value: str) -> None:
        self.press("j", "k", "k", "w")
        self.until_focus("#dialog input")
        self.write(value)
        self.confirm()

    def to_card(self, entity: str) -> None:
        self.press("Escape", "r")
        self.until_focus(".card.broken")
        for _ in range(20):
            if self.page.evaluate("document.activeElement?.dataset.entity") == entity:
                return
            self.press("Tab")
        pytest.fail("Tab never reached the card")

    def resume(self, entity: str) -> None:
        self.to_card(entity)
        self.press("r")

    def abandon(self, entity: str) -> None:
        self.to_card(entity)
        self.press("x")
        self.until_focus("#dialog button")
        self.confirm("Shift+Tab")

    def filter(self, text: str) -> None:
        self.press("/", "Control+a", "Delete")
        self.write(text)
        self.press("Escape")

    def all_shown(self, word: str) -> None:
        self.press({"Resume": "Shift+R", "Abandon": "Shift+X", "Approve": "Shift+A", "Deny": "Shift+D"}[word])
        self.until_focus("#dialog :is(input, button)")
        if word == "Abandon":  # what cannot be undone has the focus on "Cancel"
            self.press("Shift+Tab")
        self.confirm()

    def stop(self, reason: str) -> None:
        self.press("x")
        self.until_focus("#dialog input")
        self.write(reason)
        self.confirm()
