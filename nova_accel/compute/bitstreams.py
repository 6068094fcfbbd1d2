# SPDX-License-Identifier: Apache-2.0
"""Bitstreams, fetched from Glance and kept on this host.

Seam: ``nova.image.glance.API`` (get, download), which verifies signatures
where ``[glance] verify_glance_signatures`` says so.

A copy is named after its image and its hash, and that is checked each time,
so nothing goes out of date here; files may be deleted whenever one likes.
"""

import collections.abc
import contextlib
import hashlib
import os
import tempfile

import nova.conf
from nova.image import glance
from oslo_concurrency import lockutils
from oslo_log import log as logging
from oslo_serialization import jsonutils
from oslo_utils import uuidutils

from nova_accel.core import errors
from nova_accel.core import fpga

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF

_MIB = 1 << 20


def fetch(context, image: str) -> fpga.Bitstream:
    """A bitstream on this host, with what its image says of it.

    Where Glance cannot be asked, or not any more, a copy that is here already
    serves: when a host starts its servers again, there is nobody whose token
    could be used.

    :param context: of the request; who made it has to have access
    :raises errors.AssignmentError: if it cannot be had whole
    """
    if not uuidutils.is_uuid_like(image):
        # It is to be part of a file's name.
        raise _fault(errors.quote(image), 'is not the uuid of an image')
    with lockutils.lock(f'nova_accel-bitstream-{image}'):
        try:
            found = glance.API().get(context, image)
        except Exception as error:
            path, properties = _kept(image)
            if path is None:
                raise _fault(image, f'its image cannot be had: {error}',
                             'it has to be there, and shared with the '
                             'server\'s project') from None
            LOG.warning('Bitstream %s: its image cannot be had (%s); the copy '
                        'of it that is here is used', image, error)
        else:
            path = _current(context, image, found)
            properties = found.get('properties') or {}
    return fpga.declared(image, path, properties)


def _current(context, image, found) -> str:
    """The copy of an image as it is in Glance, which is made if need be."""
    algorithm, digest = _hash(image, found)
    path = os.path.join(_folder(), f'{image}.{algorithm}-{digest}.bin')
    # Beside it, what its image says: for when Glance cannot be asked.
    with _new(f'{path}.json') as file:
        file.write(jsonutils.dump_as_bytes({
            key: value for key, value
            in (found.get('properties') or {}).items()
            if isinstance(value, str)}))
    if _digest(path, algorithm) != digest:
        _download(context, image, found, path, algorithm, digest)
    return path


def _hash(image, found) -> tuple[str, str]:
    """The image's hash: its algorithm and its value."""
    if found.get('status') != 'active':
        raise _fault(image, f'its image is {found.get("status")}, not active')
    # Glance's own MD5 is there for images older than Rocky.
    algorithm, digest = (
        (found['os_hash_algo'], found['os_hash_value'])
        if found.get('os_hash_algo') and found.get('os_hash_value')
        else ('md5', found.get('checksum')))
    if not digest:
        raise _fault(image, 'its image has no hash to check it by')
    if algorithm not in hashlib.algorithms_available or not (
            str(digest).isalnum()):
        raise _fault(image, f'its image\'s hash is {errors.quote(algorithm)} '
                     f'{errors.quote(digest)}, which cannot be checked')
    return algorithm, str(digest)


def _download(context, image, found, path, algorithm, digest) -> None:
    limit = CONF.nova_accel.max_bitstream_size * _MIB
    if (found.get('size') or 0) > limit:
        raise _too_large(image, found['size'])
    with _new(path) as file:
        try:
            glance.API().download(context, image, data=_Limited(file, limit))
        except _TooLarge:
            raise _too_large(image, f'more than {limit}') from None
        except Exception as error:
            raise _fault(image, f'it cannot be fetched: {error}') from None
        file.flush()
        if _digest(file.name, algorithm) != digest:
            raise _fault(image, 'what Glance sent is damaged: it has '
                         f'{os.path.getsize(file.name)} bytes, and not the '
                         f'{algorithm} hash of its image', 'try again')
    LOG.info('Bitstream %s is here: %s', image, path)


def _kept(image) -> tuple[str | None, collections.abc.Mapping[str, str]]:
    """A good copy of an image, and what was said of it."""
    for name in sorted(os.listdir(_folder())):
        path = os.path.join(_folder(), name)
        if not name.startswith(f'{image}.') or not name.endswith('.bin'):
            continue
        algorithm, _hyphen, digest = name.removeprefix(
            f'{image}.').removesuffix('.bin').partition('-')
        if digest and _digest(path, algorithm) == digest:
            try:
                with open(f'{path}.json', 'rb') as file:
                    return path, jsonutils.load(file)
            except (OSError, ValueError):
                continue
    return None, {}


def _digest(path, algorithm) -> str:
    """A file's hash, or '' where it is not there."""
    try:
        with open(path, 'rb') as file:
            return hashlib.file_digest(file, lambda: hashlib.new(
                algorithm, usedforsecurity=False)).hexdigest()
    except (OSError, ValueError):
        return ''


@contextlib.contextmanager
def _new(path):
    """A file that takes the place of another once all of it is there."""
    file = tempfile.NamedTemporaryFile(dir=_folder(), prefix='new-',
                                       delete=False)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
    except BaseException:
        os.unlink(file.name)
        raise


def _folder() -> str:
    path = os.path.join(CONF.state_path, 'nova_accel', 'bitstreams')
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


class _TooLarge(Exception):
    pass


class _Limited:
    """A file that takes so many bytes and no more, whatever was announced."""

    def __init__(self, file, limit: int):
        self._file = file
        self._left = limit

    def write(self, chunk: bytes) -> int:
        self._left -= len(chunk)
        if self._left < 0:
            raise _TooLarge
        return self._file.write(chunk)

    def truncate(self, size: int | None = None) -> int:
        """As Nova does where a signature is wrong."""
        return self._file.truncate(size)


def _fault(image, reason: str, remedy: str = '') -> errors.AssignmentError:
    return errors.AssignmentError(f'bitstream {image}', reason, remedy)


def _too_large(image, size) -> errors.AssignmentError:
    return _fault(image, f'has {size} bytes; this host takes '
                  f'{CONF.nova_accel.max_bitstream_size} MiB',
                  'raise [nova_accel] max_bitstream_size')
