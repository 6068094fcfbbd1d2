# SPDX-License-Identifier: Apache-2.0
"""What a harness is, and the inputs that it gets."""

import pathlib
import random
import re
import textwrap

from nova_accel.core import errors
from tests.fuzz import forms
from tests.fuzz import mutation

ROOT = pathlib.Path(__file__).parents[2]
DATA = ROOT / 'tests' / 'data'

#: Longest text of an error, in characters: it becomes a line of a log.
MAX_ERROR = 4096


class Harness:
    """Gives inputs to the code that reads them from others.

    :cvar form: the form of the inputs, None if they are only bytes
    """

    form: forms.Form | None = None

    def seeds(self) -> list[bytes]:
        """Return valid inputs, and small ones that were a problem before."""
        raise NotImplementedError

    def whole(self) -> list[bytes]:
        """Return further inputs, which are costly and are not changed."""
        return []

    def wrap(self, rng: random.Random, content: bytes) -> bytes:
        """Return an input in the form in which it is sent."""
        return content

    def run(self, content: bytes) -> bool:
        """Give an input to the code.

        :returns: whether the code accepted it
        :raises Exception: one that the code does not document
        """
        raise NotImplementedError


class Inputs:
    """The inputs of a harness, by number.

    The first are the seeds and the whole inputs as they are. An input depends
    only on the seed of the random changes and on its number.
    """

    def __init__(self, name: str, own: Harness, seed: int):
        self._name, self._own, self._seed = name, own, seed
        self._seeds = own.seeds()
        self._fixed = [*self._seeds, *own.whole()]
        self._structures: dict[int, object] = {}

    def __getitem__(self, number: int) -> bytes:
        if number < len(self._fixed):
            return self._fixed[number]
        rng = random.Random(f'{self._seed}/{self._name}/{number}')
        content = self._changed(rng)
        return self._own.wrap(rng, content)

    def _changed(self, rng) -> bytes:
        index, donor = self._choose(rng), self._choose(rng)
        content = self._seeds[index]
        if self._own.form and rng.random() < 0.8:
            content = self._restructured(rng, index, donor)
            if rng.random() < 0.8:
                return content
        for _number in range(mutation.count(rng)):
            content = mutation.raw(rng, content, self._seeds[donor])
        return content

    def _restructured(self, rng, index, donor) -> bytes:
        try:
            value, other = self._structure(index), self._structure(donor)
            for _number in range(mutation.count(rng)):
                value = mutation.structure(rng, value, other)
            return self._own.form.dumps(value)
        except (RecursionError, ValueError):
            # Nested too deep for this program, or a number is too long.
            return self._seeds[index]

    def _structure(self, index) -> object:
        if index not in self._structures:
            try:
                self._structures[index] = self._own.form.loads(
                    self._seeds[index])
            except Exception:
                # It was a problem before, and need not be valid.
                self._structures[index] = None
        return self._structures[index]

    def _choose(self, rng) -> int:
        """Choose a seed; of two, the smaller: inputs are then faster."""
        return min(rng.randrange(len(self._seeds)),
                   rng.randrange(len(self._seeds)),
                   key=lambda index: len(self._seeds[index]))


def check_error(error: errors.AccelError) -> None:
    """Check that an error is one line that can be printed."""
    text = str(error)
    if not text.isprintable() or len(text) > MAX_ERROR:
        raise AssertionError(f'the text of an error: {text[:MAX_ERROR]!r}'
                             ) from error


def files(*patterns: str) -> list[bytes]:
    """Return the content of files of the repository, sorted by path."""
    return [path.read_bytes() for pattern in patterns
            for path in sorted(ROOT.glob(pattern))]


def blocks(language: str) -> list[bytes]:
    """Return the code blocks of the documentation in a language."""
    found = []
    for page in sorted(ROOT.glob('doc/source/**/*.rst')):
        for _indent, block in re.findall(
                rf'^( *)\.\. code-block:: {language}\n((?:\n|\1 +.*\n)+)',
                page.read_text(), re.MULTILINE):
            found.append(textwrap.dedent(block).strip().encode())
    return found
