# SPDX-License-Identifier: Apache-2.0
"""Bitstreams: their image metadata, and access to a cached copy."""

import hashlib
import os

from glanceclient import exc as glanceclient
from keystoneauth1 import exceptions as keystone
from nova import context
from nova import exception
import nova.conf
from nova.image import glance
import pytest

from nova_accel import conf
from nova_accel.compute.devices import bitstreams
from nova_accel.core import errors

CONF = nova.conf.CONF

_IMAGE = 'a6a12670-7014-4cff-a563-cea949b57fb3'
_CONTENT = b'bitstream' * 10

_NOT_FOUND = exception.ImageNotFound(image_id=_IMAGE)
_REFUSED = exception.ImageNotAuthorized(image_id=_IMAGE)
_DOWN = exception.GlanceConnectionFailed(server='x', reason='down')


class _Glance:
    """A fake of Nova's image API.

    :param said: the image that it returns, or an exception that it raises
    """

    def __init__(self, said):
        self.said = said
        self.downloads = []

    def get(self, _context, _image):
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def download(self, _context, image, data=None, trusted_certs=None):
        self.downloads.append((image, trusted_certs))
        data.write(_CONTENT)


def _said(**more):
    return {'id': _IMAGE, 'status': 'active', 'size': len(_CONTENT),
            'os_hash_algo': 'sha512',
            'os_hash_value': hashlib.sha512(_CONTENT).hexdigest(),
            'properties': {}, **more}


@pytest.fixture
def service(monkeypatch, tmp_path):
    CONF([], project='nova', default_config_files=[])
    conf.register_opts(CONF)
    CONF.set_override('state_path', str(tmp_path))
    service = _Glance(_said())
    monkeypatch.setattr(glance, 'API', lambda: service)
    yield service
    CONF.clear_override('state_path')


def _fetch(token='token', **more):
    return bitstreams.fetch(context.RequestContext(auth_token=token), _IMAGE,
                            **more)


@pytest.mark.parametrize('token, answer', [
    *(('token', error) for error in (
        _NOT_FOUND, _REFUSED, glanceclient.HTTPException(),
        exception.ImageBadRequest(image_id=_IMAGE, response='no'),
        keystone.Unauthorized(), _said(status='deactivated'))),
    # The image is deleted, so no user may have it.
    (None, _NOT_FOUND)])
def test_refused_user_gets_no_cached_copy(service, token, answer):
    _fetch()
    service.said = answer
    with pytest.raises(errors.AssignmentError, match=f'^bitstream {_IMAGE}: '):
        _fetch(token)


@pytest.mark.parametrize('token, answer', [
    *(('token', error) for error in (
        _DOWN, glanceclient.HTTPInternalServerError(),
        glanceclient.HTTPBadGateway(), keystone.ConnectFailure(),
        keystone.ServiceUnavailable())),
    # There is no token when the host boots and starts its servers.
    (None, _REFUSED), (None, keystone.EmptyCatalog())])
def test_cached_copy_is_used_if_glance_is_unavailable(service, token, answer):
    service.said = _said(properties={'vendor': 'Intel', 'other': 'x'})
    fetched = _fetch()
    service.said = answer
    assert _fetch(token) == fetched
    assert fetched.vendor == 'Intel'
    os.unlink(fetched.path)
    with pytest.raises(errors.AssignmentError, match='no copy of it'):
        _fetch(token)


@pytest.mark.parametrize('odd', [
    {'os_hash_algo': 'shake_128', 'os_hash_value': 'ab' * 16},
    {'os_hash_algo': 'md5-sha1', 'os_hash_value': 'ab' * 16},
    {'os_hash_algo': ['sha512']}, {'os_hash_algo': '../x'},
    {'os_hash_value': 'a' * 10000}, {'os_hash_value': 12345},
    {'os_hash_value': '٣' * 128}, {'checksum': 5, 'os_hash_algo': '',
                                   'os_hash_value': ''},
    {'properties': ['x']}, {'properties': 5}, {'size': '12'}, {'size': -1},
    {'size': len(_CONTENT) - 1}, {'status': None},
    # An MD5 checksum does not replace an incomplete hash.
    *({key: None, 'checksum': hashlib.md5(_CONTENT).hexdigest()}
      for key in ('os_hash_algo', 'os_hash_value'))])
def test_invalid_image_metadata_is_refused(service, odd):
    service.said = _said(**odd)
    with pytest.raises(errors.AssignmentError, match=f'^bitstream {_IMAGE}: '):
        _fetch()


def test_old_image_is_checked_by_its_md5(service):
    service.said = _said(os_hash_algo=None, os_hash_value=None, size=None,
                         checksum=hashlib.md5(_CONTENT).hexdigest().upper())
    with open(_fetch().path, 'rb') as file:
        assert file.read() == _CONTENT


@pytest.mark.parametrize('certs, downloads', [(None, 1), (object(), 2)])
def test_trusted_certificates_are_checked_for_each_use(
        service, certs, downloads):
    for _time in range(2):
        _fetch(trusted_certs=certs)
    assert service.downloads == [(_IMAGE, certs)] * downloads


def test_unwritable_folder_is_an_error(service, tmp_path):
    folder = tmp_path / 'nova_accel'
    folder.mkdir()
    (folder / 'bitstreams').write_text('a file')
    with pytest.raises(errors.AssignmentError, match='cannot be stored'):
        _fetch()
