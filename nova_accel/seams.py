# SPDX-License-Identifier: Apache-2.0
"""The one way in which functions of Nova are wrapped.

Where Nova has no plugin point, one of its functions is replaced by one that
calls ours and gives it the original. :data:`WRAPPED` lists them all;
``tests/contract/test_seams.py`` checks each against Nova.
"""

import collections.abc
import functools
import inspect
import types
import typing

#: Every function of Nova that can be wrapped, by modules that are imported.
WRAPPED: list['Seam'] = []

# Set on what replaces a function: the function itself.
_ORIGINAL = 'nova_accel'


class Seam:
    """A function of Nova that is wrapped, once it is installed.

    :param owner: module or class of Nova that has the function
    :param name: its name there; a method, a static or a class method as well
    :param wrapper: called in its place, with the original, then with what the
        original is called with
    """

    def __init__(self, owner: types.ModuleType | type, name: str,
                 wrapper: collections.abc.Callable) -> None:
        self.owner = owner
        self.name = name
        self.wrapper = wrapper
        WRAPPED.append(self)

    def __str__(self) -> str:
        return f'{self.owner.__name__}.{self.name}'

    @property
    def original(self) -> collections.abc.Callable:
        """The function as Nova has it.

        :raises AttributeError: if Nova has no such function
        """
        return getattr(self._function, _ORIGINAL, self._function)

    @property
    def is_installed(self) -> bool:
        return hasattr(self._function, _ORIGINAL)

    def install(self) -> None:
        """Wrap the function; once, however often it is called."""
        if self.is_installed:
            return
        original = self.original

        @functools.wraps(original)
        def wrapped(*args, **kwargs):
            return self.wrapper(original, *args, **kwargs)

        setattr(wrapped, _ORIGINAL, original)
        found = self._found
        setattr(self.owner, self.name,
                type(found)(wrapped) if isinstance(
                    found, (staticmethod, classmethod)) else wrapped)

    @property
    def _found(self) -> typing.Any:
        return inspect.getattr_static(self.owner, self.name)

    @property
    def _function(self) -> collections.abc.Callable:
        """What the owner has now, out of a static or a class method."""
        found = self._found
        return getattr(found, '__func__', found)


def wrap(owner: types.ModuleType | type, name: str,
         ) -> collections.abc.Callable[[collections.abc.Callable], Seam]:
    """Declare a function to be a wrapper, as a decorator.

    :returns: a :class:`Seam` in place of the function
    """
    return functools.partial(Seam, owner, name)
