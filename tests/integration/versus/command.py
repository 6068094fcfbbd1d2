# SPDX-License-Identifier: Apache-2.0
"""Compare with Cyborg on one cloud: ``python -m tests.integration bench``.

It starts Cyborg. It boots and deletes servers without a device, with a device
of Cyborg and with a device of nova_accel in turn. The documentation includes
the results. It fails if nova_accel makes more requests or takes more time than
the documentation promises.
"""

import argparse
from collections.abc import Callable
import contextlib
from importlib import metadata
import json
import os
import sys
import types

from tests.bench import commit
from tests.bench import frame
from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import cloud as clouds
from tests.integration.cloud import resources
from tests.integration.stage1 import outer as outers
from tests.integration.versus import comparison
from tests.integration.versus import cyborg
from tests.integration.versus import trial

#: With fewer rounds the documentation's files are not written.
ROUNDS = 20

_PROFILE = f"""\
name: of-ours
groups:
- resources: {{{outers.GPU}: 1}}
"""
#: The default of a deployment; the test's own interval is shorter.
_CONF = '[DEFAULT]\nupdate_resources_interval = 0\n'
#: The services that read the configuration of Cyborg and of this benchmark.
_READERS = ('nova-api', 'nova-conductor', 'nova-compute')
_VERSIONS = ('glance', 'keystone', 'neutron', 'nova', 'openstack-cyborg',
             'openstack-placement')
_APIS = ('keystone', 'placement', 'glance', 'neutron', 'nova-api',
         'cyborg-api')


def main() -> int:
    return run(comparison, __doc__, _measure)


def run(compared: types.ModuleType, about: str, measure: Callable) -> int:
    """Measure and write the results.

    :param compared: the module that evaluates the figures
    :param about: the description for the command line's help
    :param measure: takes the cloud, the number of rounds and the steps;
        returns the figures
    :returns: an exit code: 1 if the figures break a promise
    """
    rounds = _rounds(compared.NAME, about)
    shown = steps.Steps()
    figures = measure(clouds.Cloud(), rounds, shown)
    result = {'benchmark': compared.NAME, 'scale': f'{rounds} rounds',
              'machine': _machine(), 'figures': figures}
    place.make(place.LOG)
    _write(compared, result, place.LOG)
    shown.say(compared.section(result))
    if rounds >= ROUNDS:
        _write(compared, result, frame.DIRECTORY)
    broken = compared.broken(figures)
    for line in broken:
        shown.say(f'PROMISE BROKEN: {line}')
    return 1 if broken else 0


def _rounds(name, about):
    parser = argparse.ArgumentParser(name, description=about)
    parser.add_argument('--rounds', type=int, default=ROUNDS,
                        help='how often each boots (default: %(default)s)')
    return parser.parse_args().rounds


def _measure(cloud, rounds, shown):
    with contextlib.ExitStack() as stack:
        with shown.step('Cyborg, and our devices'):
            # Registered first, it runs last: services that Outer restarts at
            # its end still have the configuration of Cyborg.
            stack.callback(_clean_up, cloud)
            cyborg.up(cloud)
            place.make(cloud.profiles)
            (cloud.profiles / 'of-ours.yaml').write_text(_PROFILE)
            cloud.configure('nova', _CONF, 'versus')
            cloud.restart('nova-api', 'nova-conductor')
            stack.enter_context(outers.Outer(cloud).instead())
            steps.wait('our resource providers', lambda: [
                provider for provider in cloud.connection.placement
                .resource_providers() if '_accel_' in provider.name], 120)
        with shown.step('boots and deletes'):
            return comparison.measure(
                trials(cloud), _flavors(cloud), rounds, shown.say)


def trials(cloud) -> trial.Trials:
    """Return trials with the cloud's image and the access logs of all APIs."""
    image = cloud.connection.image.find_image(
        resources.IMAGE, ignore_missing=False)
    return trial.Trials(
        cloud.connection, image.id,
        {name: cloud.access_log(name) for name in _APIS},
        cloud.log('nova-compute'))


def _clean_up(cloud):
    """Remove Cyborg from the cloud, for the parts that follow."""
    cyborg.down(cloud)
    cloud.configure('nova', '', 'versus')
    cloud.restart(*_READERS)


def _flavors(cloud) -> dict[str, str]:
    """Return flavor ids by way; the flavors differ only in the profile."""
    profiles = {comparison.PLAIN: None, comparison.CYBORG: cyborg.PROFILE,
                comparison.OURS: 'of-ours'}
    return {way: resources.flavor(
        cloud.connection, f'versus-{way}', extra_specs=profile and {
            'accel:device_profile': profile}).id
        for way, profile in profiles.items()}


def _machine() -> dict[str, str | int]:
    """Return the number of cores, our commit and the services' versions."""
    installed = metadata.distributions(path=map(
        str, place.VENV.glob('lib/python3*/site-packages')))
    return {'commit': commit.commit(),
            'cores': len(os.sched_getaffinity(0)),
            **{each.name: each.version for each in installed
               if each.name in _VERSIONS}}


def _write(compared, result, directory):
    path = directory / compared.NAME
    path.with_suffix('.json').write_text(json.dumps(result, indent=1) + '\n')
    path.with_suffix('.inc').write_text(compared.section(result))


if __name__ == '__main__':
    sys.exit(main())
