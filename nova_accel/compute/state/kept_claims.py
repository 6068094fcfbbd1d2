# SPDX-License-Identifier: Apache-2.0
"""Files with the claims that servers keep while they have no domain.

libvirt's definition is the record of what a server holds. Nova undefines it
before it defines the next one, and Placement does not tell which of a
provider's units the server had. So each such claim is in a file from before
the domain is undefined until a domain has the devices again.
"""

import collections.abc
import os
import pathlib

import nova.conf
from oslo_log import log as logging

from nova_accel.core import claim as claims

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class KeptClaims:
    """The files of one compute node.

    :param node: returns the compute node's uuid: hosts can share the
        directory ``state_path``
    """

    def __init__(self, node: collections.abc.Callable[[], str]) -> None:
        self._node = node

    def load(self) -> dict[str, claims.Claim]:
        """Return all claims, by their consumer in Placement."""
        found = {}
        for path in sorted(self._folder.glob('*.json')):
            try:
                found[path.stem] = claims.loads(path.read_text())
            except (OSError, ValueError) as error:
                LOG.warning('Could not read the claim in %s, ignoring it: %s',
                            path, error)
        return found

    def save(self, consumer: str, claim: claims.Claim) -> None:
        """Write a claim to its file, and wait until it is on the disk."""
        path = self._path(consumer)
        new = path.with_suffix('.new')
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(new, 'w') as file:
                file.write(claims.dumps(claim))
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except OSError as error:
            LOG.warning('Could not write %s: if nova-compute ends before the '
                        'domain of server %s is defined again, the server '
                        'may get other units of its resource providers: %s',
                        path, claim.server, error)

    def remove(self, consumer: str) -> None:
        """Remove the file of a claim, if there is one."""
        try:
            self._path(consumer).unlink(missing_ok=True)
        except OSError as error:
            LOG.warning('Could not remove the file of a claim: %s', error)

    def _path(self, consumer: str) -> pathlib.Path:
        return self._folder / f'{consumer}.json'

    @property
    def _folder(self) -> pathlib.Path:
        return pathlib.Path(CONF.state_path, 'nova_accel', 'claims',
                            self._node())
