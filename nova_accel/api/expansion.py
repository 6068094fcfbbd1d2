# SPDX-License-Identifier: Apache-2.0
"""nova-api: expand the device profile of a flavor for a server.

Seam: ``nova.compute.flavors.get_flavor_by_flavor_id``, wrapped. Two callers
load a flavor for a server (servers.create and compute.API.resize); both pass
``read_deleted='no'``. The flavors API does not, and must keep showing the
flavor as the operator wrote it.
"""

import functools
import os

from nova import exception
from nova.compute import flavors
import nova.conf
from oslo_log import log as logging

from nova_accel import conf
from nova_accel import moved_flavors
from nova_accel import seams
from nova_accel.core import errors
from nova_accel.core.request import flavor_specs
from nova_accel.profiles import store

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class DeviceProfileRejected(exception.InvalidRequest):
    """Makes nova-api answer a create or a resize with 400 and a reason."""

    msg_fmt = '%(reason)s'


@seams.wrap(flavors, 'get_flavor_by_flavor_id')
def get_flavor_by_flavor_id(original, *args, **kwargs):
    """Load a flavor; if it is for a server, expand its profile.

    It also gets the new resource classes, so that quotas count these.
    """
    # Nova 34 has the context before the id, Nova 33 after it.
    flavor = original(*args, **kwargs)
    if kwargs.get('read_deleted') == 'no':
        expand(flavor)
        flavor = moved_flavors.current(flavor)
        # Mark them as loaded, so that Nova does not save them.
        flavor.obj_reset_changes(['extra_specs'])
    return flavor


def install() -> None:
    """Register the options, and wrap the function that loads a flavor."""
    conf.register_opts(CONF)
    conf.log_unknown(CONF, LOG)
    get_flavor_by_flavor_id.install()


def expand(flavor) -> None:
    """Write the profile that a flavor names into its extra specs.

    The flavor is changed in place. The object belongs to one request and is
    not saved.

    :param flavor: nova.objects.Flavor
    :raises DeviceProfileRejected: if the profile cannot be used
    """
    name = flavor.extra_specs.get(flavor_specs.PROFILE_KEY)
    if name is None:
        return
    if not name.strip():
        # Nova ignores an empty value; the server would get no device.
        raise DeviceProfileRejected(reason=str(errors.ProfileError(
            f"the flavor's {flavor_specs.PROFILE_KEY}",
            f'{errors.quote(name)} names no device profile',
            'write the name of one, or remove the key from the flavor')))
    profiles = _store(tuple(CONF.nova_accel.profile_dirs))
    profile = profiles.get(name)
    if profile is None:
        if _cyborg_is_configured():
            LOG.debug('Device profile %s is in no file; leaving it to Cyborg',
                      name)
            return
        raise DeviceProfileRejected(reason=_unknown(name, profiles))
    try:
        flavor.extra_specs = flavor_specs.expand(profile, flavor.extra_specs)
    except errors.ProfileError as error:
        raise DeviceProfileRejected(reason=str(error)) from None


def _unknown(name: str, profiles: store.Store) -> str:
    """Return the answer to the tenant, who must not see paths."""
    text = f'Device profile {errors.quote(name)} is not known'
    LOG.warning('%s; looked for in %s', text,
                ', '.join(profiles.directories) or 'no directory')
    for error in profiles.problems():
        if name in str(error):
            problem = str(error)
            for directory in profiles.directories:
                problem = problem.replace(os.path.join(directory, ''), '')
            return f'{text}: {problem}'
    return text


@functools.cache
def _store(directories: tuple[str, ...]) -> store.Store:
    return store.Store(directories)


def _cyborg_is_configured() -> bool:
    """Whether nova.conf sets any option of ``[cyborg]``."""
    defaults = ('opt_default', 'set_default')
    return any(
        location is not None and location.location.name not in defaults
        for location in (CONF.get_location(option, 'cyborg')
                         for option in CONF.cyborg))
