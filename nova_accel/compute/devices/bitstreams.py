# SPDX-License-Identifier: Apache-2.0
"""Bitstreams, fetched from Glance and kept on this host.

Seam: ``nova.image.glance.API`` (get, download), which verifies signatures
where ``[glance] verify_glance_signatures`` says so, or a server has trusted
certificates.
"""

import collections.abc
import dataclasses
import hashlib
import os
import re

from glanceclient import exc as glanceclient
from keystoneauth1 import exceptions as keystone
from nova import exception
import nova.conf
from nova.image import glance
from oslo_concurrency import lockutils
from oslo_log import log as logging
from oslo_utils import uuidutils

from nova_accel.core import errors
from nova_accel.core.request import fpga
from nova_accel.host import bitstreams

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF

_MIB = 1 << 20

# What says nothing of the image: Glance, or Keystone before it, gives no
# answer or fails. Nova makes GlanceConnectionFailed of a 503, too.
_UNREACHABLE = (
    exception.GlanceConnectionFailed, glanceclient.HTTPInternalServerError,
    glanceclient.HTTPBadGateway, keystone.ConnectionError,
    keystone.DiscoveryFailure, keystone.HttpServerError)


@dataclasses.dataclass(frozen=True)
class _Image:
    """What Glance says of an image, of the form that it should have.

    :param size: in bytes; 0 if Glance does not say
    :param algorithm: of the hash, one of hashlib's
    :param digest: in lower-case hexadecimal digits
    """

    size: int
    algorithm: str
    digest: str
    properties: collections.abc.Mapping[str, str]


def fetch(context, image: str, trusted_certs=None) -> fpga.Bitstream:
    """A bitstream on this host, with what its image says of it.

    Where Glance cannot be asked, a copy that is here already serves: when a
    host starts its servers again, there is nobody whose token could be used.
    Where Glance refuses the image, it does not.

    :param context: of the request; who made it has to have access
    :param trusted_certs: nova.objects.TrustedCerts of the server, or None;
        Nova checks the image's signature by them when it is downloaded, so
        each time
    :raises errors.AssignmentError: if it cannot be had whole
    """
    if not uuidutils.is_uuid_like(image):
        # It is to be part of a file's name.
        raise _fault(errors.quote(image), 'is not the uuid of an image')
    with lockutils.lock(f'nova_accel-bitstream-{image}'):
        found = _ask(context, image)
        try:
            path, properties = (
                _kept(image) if found is None else
                _current(context, image, _read(image, found), trusted_certs))
        except OSError as error:
            raise _fault(image, 'its copy cannot be kept on this host: '
                         f'{error.strerror}') from None
    return fpga.declared(image, path, properties)


def _ask(context, image) -> dict | None:
    """What Glance says of an image; None if it cannot be asked.

    :raises errors.AssignmentError: if Glance refuses it
    """
    try:
        return glance.API().get(context, image)
    except Exception as error:
        if _is_refusal(context, error):
            raise _fault(image, f'its image cannot be had: {error}',
                         'it has to be there, and shared with the '
                         'server\'s project') from None
        LOG.warning('Glance cannot be asked for bitstream %s (%s); a copy of '
                    'it that is here would be used', image, error)
        return None


def _is_refusal(context, error: Exception) -> bool:
    if isinstance(error, _UNREACHABLE):
        return False
    # Without a token nobody is refused; but what is gone is gone.
    return getattr(context, 'auth_token', '') is not None or isinstance(
        error, exception.ImageNotFound)


def _kept(image) -> tuple[str, collections.abc.Mapping[str, str]]:
    """The copy of an image that is here, and what was said of it."""
    kept = _copies().latest(image)
    if kept is None:
        raise _fault(image, 'Glance cannot be asked for its image, and there '
                     'is no copy of it on this host',
                     'try again once Glance answers')
    return kept


def _current(context, image, said: _Image, trusted_certs,
             ) -> tuple[str, collections.abc.Mapping[str, str]]:
    """The copy of an image as it is in Glance, which is made if need be."""
    copies = _copies()
    path = copies.path(image, said.algorithm, said.digest)
    if trusted_certs or not copies.use(path):
        _download(context, image, said, trusted_certs, copies, path)
    # For when Glance cannot be asked.
    copies.describe(path, said.properties)
    return path, said.properties


def _read(image, found: collections.abc.Mapping[str, object]) -> _Image:
    """
    :raises errors.AssignmentError: if Glance says nonsense, or the image is
        not to be used
    """
    status, size = found.get('status'), found.get('size') or 0
    if status != 'active':
        raise _fault(image, 'its image is '
                     f'{errors.plain(str(status))}, not active')
    if type(size) is not int or size < 0:
        raise _fault(image, f'its image has a size of {errors.quote(size)}, '
                     'which is no number of bytes')
    properties = found.get('properties') or {}
    if not isinstance(properties, collections.abc.Mapping):
        raise _fault(image, 'the properties of its image are '
                     f'{errors.quote(properties)}, and no names with values')
    return _Image(size, *_hash(image, found), fpga.heeded(properties))


def _hash(image, found) -> tuple[str, str]:
    """The image's hash: its algorithm and its value."""
    algorithm, digest = found.get('os_hash_algo'), found.get('os_hash_value')
    if not algorithm and not digest:
        # An image older than Rocky has an MD5 and nothing else. As
        # python-glanceclient does: of others it does not count.
        algorithm, digest = 'md5', found.get('checksum')
    if not digest:
        raise _fault(image, 'its image has no hash to check it by')
    if not _is_hash(algorithm, digest):
        raise _fault(image, f'its image\'s hash is {errors.quote(algorithm)} '
                     f'{errors.quote(digest)}, which cannot be checked')
    return algorithm, digest.lower()


def _is_hash(algorithm: object, digest: object) -> bool:
    try:
        size = hashlib.new(algorithm, usedforsecurity=False).digest_size
    except (TypeError, ValueError):
        return False
    # Both are to be part of a file's name. SHAKE's have no size.
    return bool(size) and re.fullmatch(r'[\w-]+', algorithm) is not None and (
        isinstance(digest, str) and len(digest) == 2 * size
        and re.fullmatch('[0-9a-fA-F]+', digest) is not None)


def _download(context, image, said: _Image, trusted_certs,
              copies: bitstreams.Copies, path) -> None:
    limit = CONF.nova_accel.max_bitstream_size * _MIB
    if said.size > limit:
        raise _fault(image, f'has {said.size} bytes; this host takes '
                     f'{CONF.nova_accel.max_bitstream_size} MiB',
                     'raise [nova_accel] max_bitstream_size')
    most = said.size or limit
    with copies.new(path, most) as file:
        try:
            glance.API().download(context, image, data=file,
                                  trusted_certs=trusted_certs)
        except bitstreams.TooLong:
            raise _damaged(image, f'more than {most} bytes') from None
        except Exception as error:
            raise _fault(image, f'it cannot be fetched: {error}') from None
        length, digest = file.digest(said.algorithm)
        if digest != said.digest:
            raise _damaged(image, f'{length} bytes, and not the '
                           f'{said.algorithm} hash of its image')
    LOG.info('Bitstream %s is here: %s', image, path)


def _copies() -> bitstreams.Copies:
    return bitstreams.Copies(
        os.path.join(CONF.state_path, 'nova_accel', 'bitstreams'),
        CONF.nova_accel.bitstream_cache_size * _MIB,
        CONF.reserved_host_disk_mb * _MIB)


def _damaged(image, has: str) -> errors.AssignmentError:
    return _fault(image, f'what Glance sent is damaged: it has {has}',
                  'try again')


def _fault(image, reason: str, remedy: str = '') -> errors.AssignmentError:
    return errors.AssignmentError(f'bitstream {image}', reason, remedy)
