# SPDX-License-Identifier: Apache-2.0
"""The output of the demo, for people or as JSON."""

import contextlib
import json
import time
import typing

_BOLD, _GREEN, _RED, _DIM, _PLAIN = (
    '\033[1m', '\033[32m', '\033[31m', '\033[2m', '\033[0m')


class Screen:
    """Numbered steps with their duration.

    :param out: where to
    :param as_json: print nothing until the end, then everything as JSON
    """

    def __init__(self, out: typing.TextIO, as_json: bool):
        self._as_json = as_json
        self._out = out
        self._colour = not as_json and out.isatty()
        self._steps: list[dict] = []
        self._begin = time.monotonic()

    @contextlib.contextmanager
    def step(self, title: str):
        """One step; yields a dictionary for what programs are told."""
        facts: dict = {}
        self._say(f'\n{self._paint(_BOLD, f"{len(self._steps) + 1}. {title}")}'
                  )
        begin = time.monotonic()
        yield facts
        took = round(time.monotonic() - begin, 2)
        self._steps.append({'step': title, 'seconds': took, **facts})
        self._say(self._paint(_DIM, f'   {took:.2f} s'))

    def show(self, text: str) -> None:
        for line in text.splitlines():
            self._say(f'   {line}')

    def good(self, text: str) -> None:
        self.show(self._paint(_GREEN, f'✔ {text}'))

    def bad(self, text: str) -> None:
        self.show(self._paint(_RED, f'✘ {text}'))

    def close(self, successful: bool) -> None:
        total = round(time.monotonic() - self._begin, 2)
        if self._as_json:
            json.dump({'successful': successful, 'seconds': total,
                       'steps': self._steps}, self._out, indent=2)
            print(file=self._out)
            return
        self._say(f'\n{self._paint(_BOLD, "What each step took")}')
        widest = max([step['seconds'] for step in self._steps] or [1])
        for number, step in enumerate(self._steps, 1):
            bar = '█' * max(1, round(30 * step['seconds'] / widest))
            self._say(f'   {number}. {step["step"]:52} '
                      f'{step["seconds"]:6.2f} s {bar}')
        self._say(f'   {"":55} {total:6.2f} s in all')

    def _paint(self, colour: str, text: str) -> str:
        return f'{colour}{text}{_PLAIN}' if self._colour else text

    def _say(self, text: str) -> None:
        if not self._as_json:
            print(text, file=self._out, flush=True)
