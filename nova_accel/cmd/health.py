# SPDX-License-Identifier: Apache-2.0
"""Read the health of devices once, as nova-compute does in each round."""

import collections.abc
import dataclasses
import multiprocessing
import os
import typing

from oslo_config import cfg

from nova_accel.core import health
from nova_accel.core import model
from nova_accel.host import background
from nova_accel.host import health as sysfs
from nova_accel.host import health_checks
from nova_accel.host import tree as trees

_Result = typing.TypeVar('_Result')


@dataclasses.dataclass(frozen=True)
class Reading:
    """What is seen of the health of devices.

    :param source: where it was read
    :param found: what is wrong with each function
    :param notes: what an operator should know, one line each
    """

    source: str
    found: health_checks.Problems
    notes: tuple[str, ...] = ()

    def withheld(self, functions: collections.abc.Iterable[model.Function],
                 ) -> dict[model.Address, model.Withheld]:
        """Return the functions that nova-compute withholds, and why."""
        return health_checks.withheld(self.found, functions)


def read(tree: trees.Tree, host: model.Host,
         named: collections.abc.Set[model.Address],
         kinds: health_checks.Kinds, conf: cfg.ConfigOpts) -> Reading:
    """Read the health of functions.

    It takes twice :data:`background.WAIT` seconds at most.

    :param host: read from the tree
    :param named: the functions
    :param kinds: opened on the tree
    """
    limits = health_checks.limits(conf.nova_accel)

    def check() -> tuple[health_checks.Problems, list[str]]:
        checks = health_checks.Checks()
        return checks.read(tree, host.functions, named, kinds,
                           limits), checks.failures

    # Files of a copy do not block.
    result = (apart(check, 2 * background.WAIT) if trees.is_live(tree)
              else check())
    found, failures = result or (health_checks.unknown(named), [])
    return Reading(_source(tree), found, (*failures, *(
        f'{function.address} ({function.ids}): {text}'
        for function in host.functions if function.address in found
        for text in health.counted(sysfs.errors(tree, function.address),
                                   limits))))


def offered(host: model.Host) -> set[model.Address]:
    """Return the functions whose health nova-compute reads."""
    return health_checks.addresses(
        (device, region) for device in host.devices
        for region in device.regions)


def _source(tree: trees.Tree) -> str:
    if trees.is_live(tree):
        return 'read now by this command'
    return ('read from this copy of sysfs'
            if isinstance(tree, trees.Directory) else
            'read from this recording')


def apart(function: collections.abc.Callable[[], _Result], seconds: float,
          ) -> _Result | None:
    """Call a function in a child process, and return its result.

    While the kernel blocks a thread, the process of that thread cannot end:
    in this process, it would keep the command from ending.

    :returns: None if there is no result in time
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    if not os.fork():
        try:
            # Who reads the output waits until every process has closed it.
            null = os.open(os.devnull, os.O_RDWR)
            for file in range(3):
                os.dup2(null, file)
            sender.send(function())
        finally:
            os._exit(0)
    sender.close()
    try:
        return receiver.recv() if receiver.poll(seconds) else None
    except EOFError:
        return None
