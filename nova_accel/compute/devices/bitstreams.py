# SPDX-License-Identifier: Apache-2.0
"""Downloads bitstreams from Glance, and caches them on this host.

Seam: ``nova.image.glance.API`` (get, download), which verifies signatures if
``[glance] verify_glance_signatures`` is set, or a server has trusted
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

# Errors that tell nothing about the image: Glance or Keystone does not answer,
# or fails. Nova raises GlanceConnectionFailed for a 503 as well.
_UNREACHABLE = (
    exception.GlanceConnectionFailed, glanceclient.HTTPInternalServerError,
    glanceclient.HTTPBadGateway, keystone.ConnectionError,
    keystone.DiscoveryFailure, keystone.HttpServerError)


@dataclasses.dataclass(frozen=True)
class _Image:
    """Valid metadata of an image in Glance.

    :param size: in bytes; 0 if unknown
    :param algorithm: of the hash; a name in hashlib
    :param digest: in lower-case hexadecimal digits
    """

    size: int
    algorithm: str
    digest: str
    properties: collections.abc.Mapping[str, str]


def fetch(context, image: str, trusted_certs=None) -> fpga.Bitstream:
    """Return a bitstream on this host, with the properties of its image.

    If Glance cannot be reached, use a cached copy: when a host starts its
    servers again, the context has no token. If Glance refuses the image, do
    not use the copy.

    :param context: of the request, whose user needs access to the image
    :param trusted_certs: nova.objects.TrustedCerts of the server, or None.
        Nova verifies the signature during the download, so with certificates
        download each time
    :raises errors.AssignmentError: if it cannot be downloaded and verified
    """
    if not uuidutils.is_uuid_like(image):
        # The uuid becomes part of a file name.
        raise _fault(errors.quote(image), 'is not the uuid of an image')
    with lockutils.lock(f'nova_accel-bitstream-{image}'):
        found = _query(context, image)
        try:
            path, properties = (
                _cached(image) if found is None else
                _current(context, image, _parse(image, found), trusted_certs))
        except OSError as error:
            raise _fault(image, 'its copy cannot be stored on this host: '
                         f'{error.strerror}') from None
    return fpga.from_image(image, path, properties)


def _query(context, image) -> dict | None:
    """Return an image's metadata; None if Glance cannot be reached.

    :raises errors.AssignmentError: if Glance refuses it
    """
    try:
        return glance.API().get(context, image)
    except Exception as error:
        if _is_refusal(context, error):
            raise _fault(image, f'its image cannot be read from Glance: '
                         f'{error}', 'the image has to exist and be shared '
                         'with the server\'s project') from None
        LOG.warning('Could not reach Glance for bitstream %s, using a cached '
                    'copy if there is one: %s', image, error)
        return None


def _is_refusal(context, error: Exception) -> bool:
    if isinstance(error, _UNREACHABLE):
        return False
    # Without a token Glance refuses every image. Then only "not found" counts.
    return getattr(context, 'auth_token', '') is not None or isinstance(
        error, exception.ImageNotFound)


def _cached(image) -> tuple[str, collections.abc.Mapping[str, str]]:
    """Return the latest cached copy of an image, and its properties."""
    found = _copies().latest(image)
    if found is None:
        raise _fault(image, 'Glance cannot be reached, and this host has no '
                     'copy of its image', 'try again once Glance answers')
    return found


def _current(context, image, metadata: _Image, trusted_certs,
             ) -> tuple[str, collections.abc.Mapping[str, str]]:
    """Return the copy of the image that Glance has; download if needed."""
    copies = _copies()
    path = copies.path(image, metadata.algorithm, metadata.digest)
    if trusted_certs or not copies.use(path):
        _download(context, image, metadata, trusted_certs, copies, path)
    # Stored for the next time that Glance cannot be reached.
    copies.describe(path, metadata.properties)
    return path, metadata.properties


def _parse(image, found: collections.abc.Mapping[str, object]) -> _Image:
    """
    :raises errors.AssignmentError: if the metadata are malformed, or the
        image is not active
    """
    status, size = found.get('status'), found.get('size') or 0
    if status != 'active':
        raise _fault(image, 'its image is '
                     f'{errors.plain(str(status))}, not active')
    if type(size) is not int or size < 0:
        raise _fault(image, f'its image has a size of {errors.quote(size)}, '
                     'which is not a number of bytes')
    properties = found.get('properties') or {}
    if not isinstance(properties, collections.abc.Mapping):
        raise _fault(image, 'the properties of its image are '
                     f'{errors.quote(properties)}, not names with values')
    return _Image(size, *_hash(image, found),
                  fpga.relevant_properties(properties))


def _hash(image, found) -> tuple[str, str]:
    """Return the algorithm and the value of the image's hash."""
    algorithm, digest = found.get('os_hash_algo'), found.get('os_hash_value')
    if not algorithm and not digest:
        # An image from before Rocky has only an MD5. For other images ignore
        # it, as python-glanceclient does.
        algorithm, digest = 'md5', found.get('checksum')
    if not digest:
        raise _fault(image, 'its image has no hash to verify it with')
    if not _is_hash(algorithm, digest):
        raise _fault(image, f'its image\'s hash is {errors.quote(algorithm)} '
                     f'{errors.quote(digest)}, which cannot be verified')
    return algorithm, digest.lower()


def _is_hash(algorithm: object, digest: object) -> bool:
    if not isinstance(algorithm, str):
        return False
    try:
        size = hashlib.new(algorithm, usedforsecurity=False).digest_size
    except ValueError:
        return False
    # Both become part of a file name. SHAKE algorithms have no size.
    return bool(size) and re.fullmatch(r'[\w-]+', algorithm) is not None and (
        isinstance(digest, str) and len(digest) == 2 * size
        and re.fullmatch('[0-9a-fA-F]+', digest) is not None)


def _download(context, image, metadata: _Image, trusted_certs,
              copies: bitstreams.Copies, path) -> None:
    limit = CONF.nova_accel.max_bitstream_size * _MIB
    if metadata.size > limit:
        raise _fault(image, f'has {errors.count(metadata.size, "byte")}; this '
                     'host accepts at most '
                     f'{CONF.nova_accel.max_bitstream_size} MiB',
                     'raise [nova_accel] max_bitstream_size')
    most = metadata.size or limit
    with copies.new(path, most) as file:
        try:
            glance.API().download(context, image, data=file,
                                  trusted_certs=trusted_certs)
        except bitstreams.TooLong:
            raise _damaged(image, f'more than {errors.count(most, "byte")}'
                           ) from None
        except Exception as error:
            raise _fault(image, f'cannot be downloaded: {error}') from None
        length, digest = file.digest(metadata.algorithm)
        if digest != metadata.digest:
            raise _damaged(image, f'{errors.count(length, "byte")}, and not '
                           f'the {metadata.algorithm} hash of its image')
    LOG.info('Downloaded bitstream %s to %s', image, path)


def _copies() -> bitstreams.Copies:
    return bitstreams.Copies(
        os.path.join(CONF.state_path, 'nova_accel', 'bitstreams'),
        CONF.nova_accel.bitstream_cache_size * _MIB,
        CONF.reserved_host_disk_mb * _MIB)


def _damaged(image, has: str) -> errors.AssignmentError:
    return _fault(image, f'the data from Glance is damaged: it has {has}',
                  'try again')


def _fault(image, reason: str, remedy: str = '') -> errors.AssignmentError:
    return errors.AssignmentError(f'bitstream {image}', reason, remedy)
