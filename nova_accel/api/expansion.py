# SPDX-License-Identifier: Apache-2.0
"""nova-api: a flavor's device profile, put in place when a server is made.

Seam: ``nova.compute.flavors.get_flavor_by_flavor_id``, wrapped. It is called
with ``read_deleted='no'`` by the two places that give a flavor to a server
(servers.create and compute.API.resize), and without by the flavors API, which
must go on showing what the operator wrote.
"""

import functools

from nova import exception
from nova.compute import flavors
import nova.conf
from oslo_log import log as logging

from nova_accel import conf
from nova_accel import seams
from nova_accel.core import errors
from nova_accel.core.request import flavor_specs
from nova_accel.profiles import store

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class DeviceProfileRejected(exception.InvalidRequest):
    """nova-api answers 400 with this message, at create and at resize."""

    msg_fmt = '%(reason)s'


@seams.wrap(flavors, 'get_flavor_by_flavor_id')
def get_flavor_by_flavor_id(original, *args, **kwargs):
    """Load a flavor; its profile expanded, if a server is to have it."""
    # Nova 34 has the context before the id, Nova 33 after it.
    flavor = original(*args, **kwargs)
    if kwargs.get('read_deleted') == 'no':
        expand(flavor)
    return flavor


def install() -> None:
    """Wrap the function that loads a flavor."""
    conf.register_opts(CONF)
    get_flavor_by_flavor_id.install()


def expand(flavor) -> None:
    """Put the profile that a flavor names into its extra specs.

    The flavor object belongs to one request, so it is changed in place;
    nobody saves it.

    :param flavor: nova.objects.Flavor
    :raises DeviceProfileRejected: if the profile cannot be used
    """
    name = flavor.extra_specs.get(flavor_specs.PROFILE_KEY)
    if name is None:
        return
    if not name.strip():
        # Nova takes it for no key, and the server would have no device.
        raise DeviceProfileRejected(reason=str(errors.ProfileError(
            f"the flavor's {flavor_specs.PROFILE_KEY}",
            f'{errors.quote(name)} names no device profile',
            'write the name of one, or take the key off the flavor')))
    profiles = _store(tuple(CONF.nova_accel.profile_dirs))
    profile = profiles.get(name)
    if profile is None:
        if _cyborg_is_configured():
            LOG.debug('Device profile %s is left to Cyborg', name)
            return
        raise DeviceProfileRejected(reason=_unknown(name, profiles))
    try:
        flavor.extra_specs = flavor_specs.expand(profile, flavor.extra_specs)
    except errors.ProfileError as error:
        raise DeviceProfileRejected(reason=str(error)) from None
    # These are now part of what was loaded, not a change to be saved.
    flavor.obj_reset_changes(['extra_specs'])


def _unknown(name: str, profiles: store.Store) -> str:
    where = ', '.join(profiles.directories) or 'no directory'
    text = (f'Device profile {errors.quote(name)} is not known; looked for in '
            f'{where}')
    broken = [error for error in profiles.problems() if name in str(error)]
    return f'{text} ({broken[0]})' if broken else text


@functools.cache
def _store(directories: tuple[str, ...]) -> store.Store:
    return store.Store(directories)


def _cyborg_is_configured() -> bool:
    """Whether nova.conf says anything at all about Cyborg."""
    defaults = ('opt_default', 'set_default')
    return any(
        location is not None and location.location.name not in defaults
        for location in (CONF.get_location(option, 'cyborg')
                         for option in CONF.cyborg))
