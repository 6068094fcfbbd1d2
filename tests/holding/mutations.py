# SPDX-License-Identifier: Apache-2.0
"""Mutations: the rule of holding without one of its clauses.

Each has a cell that is unexpected with it.
"""

import contextlib
import dataclasses
import typing

import fixtures


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A clause that is dropped, and a cell that notices.

    :param target: what is replaced, below ``nova_accel``
    :param replacement: what replaces it
    """

    target: str
    replacement: typing.Any
    kind: str
    operation: str
    change: str
    when: str


def _nothing(*args, **kwargs):
    return ()


def _none(*args, **kwargs):
    return None


def _empty(*args, **kwargs):
    return {}


MUTATIONS = {
    'withheld devices are withheld from their owner, too': Mutation(
        'core.assignment.ownership.providers', _nothing,
        'card', 'reboot without a domain', 'device drained', 'before'),
    'what a server had does not count': Mutation(
        'core.assignment.ownership.kept', _none,
        'vf', 'reboot', 'none', 'before'),
    'another card is not refused': Mutation(
        'core.assignment.present._check_same', _none,
        'card', 'reboot', 'another card', 'before'),
    'domains do not count': Mutation(
        'compute.state.libvirt_domains.LibvirtDomains.held_by', _nothing,
        'vf', 'reboot', 'none', 'before'),
    'claims end with nova-compute': Mutation(
        'compute.state.kept_claims.KeptClaims.load', _empty,
        'vf', 'reboot', 'none', 'nova-compute killed'),
    'a migration keeps nothing': Mutation(
        'compute.state.device_claims.DeviceClaims.keep_for', _none,
        'vf', 'revert to none', 'none', 'between'),
    'claims without a domain are not justified': Mutation(
        'core.assignment.holders.Holders.justifies',
        lambda self, consumer, claim: False,
        'vf', 'revert to none', 'none', 'between'),
    'a server without a domain lacks nothing': Mutation(
        'core.assignment.holders.Holders.lacked',
        lambda self, offered: set(),
        'card', 'reboot without a domain', 'none', 'between'),
    'unknown holders are no holders': Mutation(
        'core.assignment.holders.Holders.is_known',
        property(lambda self: True, lambda self, value: None),
        'card', 'reboot without a domain', 'none', 'Placement down'),
    'an unknown class needs nothing': Mutation(
        'core.assignment.verify.includes_our_devices',
        lambda request, allocated, inventory: bool(allocated),
        'card', 'reboot without a domain', 'none', 'Placement down'),
    'a drained device is offered': Mutation(
        'compute.state.drains.Drains.withheld', _empty,
        'card', 'reboot', 'device drained', 'before'),
    'an unhealthy device is offered': Mutation(
        'compute.state.health.Health.withheld', _empty,
        'card', 'reboot', 'unhealthy', 'before'),
    'a device that cannot be read is offered': Mutation(
        'host.health_checks._Card.problems',
        property(lambda self: self._found),
        'card', 'reboot', 'reader blocked', 'before'),
}


@contextlib.contextmanager
def applied(name: str | None):
    """Drop a clause of the rule inside the context."""
    if not name:
        yield
        return
    mutation = MUTATIONS[name]
    with fixtures.MonkeyPatch(f'nova_accel.{mutation.target}',
                              mutation.replacement):
        yield
