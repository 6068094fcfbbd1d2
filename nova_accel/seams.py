# SPDX-License-Identifier: Apache-2.0
"""Wrap functions of Nova.

Where Nova has no plugin point, one of its functions is replaced by a wrapper
of ours, which is called with the original function. :data:`WRAPPED` lists all
of them. ``tests/contract/test_seams.py`` checks each one against Nova. (wrapt
would add proxies, and has no list of what it replaced.)
"""

import collections.abc
import functools
import inspect
import types
import typing

#: All wrappers that the imported modules declare, installed or not.
WRAPPED: list['Seam'] = []

#: A function of Nova, or one that replaces it.
Function = collections.abc.Callable[..., typing.Any]

# Attribute of a replacement that holds the original function.
_ORIGINAL = 'nova_accel'


class Seam:
    """A wrapper of a function of Nova; it is active once installed.

    :param owner: module or class of Nova that has the function
    :param name: name of the function, the method, static or class method
    :param wrapper: called instead of it, with the original function and then
        the arguments of the call
    """

    def __init__(self, owner: types.ModuleType | type, name: str,
                 wrapper: Function) -> None:
        self.owner = owner
        self.name = name
        self.wrapper = wrapper
        WRAPPED.append(self)

    def __str__(self) -> str:
        return f'{self.owner.__name__}.{self.name}'

    @property
    def original(self) -> Function:
        """Nova's own function.

        :raises AttributeError: if Nova has no such function
        """
        found: Function = getattr(self._function, _ORIGINAL, self._function)
        return found

    @property
    def is_installed(self) -> bool:
        return hasattr(self._function, _ORIGINAL)

    def install(self) -> None:
        """Wrap the function; further calls do nothing."""
        if self.is_installed:
            return
        original = self.original

        @functools.wraps(original)
        def wrapped(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
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
    def _function(self) -> Function:
        """The current function, without its static or class method."""
        found: Function = getattr(self._found, '__func__', self._found)
        return found


def wrap(owner: types.ModuleType | type, name: str,
         ) -> collections.abc.Callable[[Function], Seam]:
    """Decorate a function as the wrapper of a function of Nova.

    :returns: a decorator that turns the function into a :class:`Seam`
    """
    return functools.partial(Seam, owner, name)
