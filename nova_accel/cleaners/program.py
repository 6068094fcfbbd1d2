# SPDX-License-Identifier: Apache-2.0
"""What the programs have in common: their words, and how they end."""

import argparse
import collections.abc
import sys

from nova_accel.core import errors
from nova_accel.core import model


def parser(name: str, about: str) -> argparse.ArgumentParser:
    """Return a parser of the step and the address of the device.

    :param name: of the program
    """
    found = argparse.ArgumentParser(name, description=about)
    found.add_argument('step', choices=('clean', 'verify'))
    found.add_argument('address', type=model.PciAddress.parse,
                       help='PCI address, such as 0000:81:00.0')
    return found


def run(step: str, clean: collections.abc.Callable[[], None],
        verify: collections.abc.Callable[[], None]) -> int:
    """Do a step, and return the exit code.

    :param step: the one that the arguments name
    """
    try:
        {'clean': clean, 'verify': verify}[step]()
    except (errors.AccelError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
