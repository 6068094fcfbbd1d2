# SPDX-License-Identifier: Apache-2.0
"""What other compute nodes and Glance say, to code that needs Nova."""

import hashlib
import json
import tempfile
from unittest import mock

from nova import context
from nova import objects
import nova.conf
from nova.image import glance

from nova_accel import conf
from nova_accel.compute.devices import bitstreams
from nova_accel.compute.guest import migration_message
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import naming
from nova_accel.host import libvirt_xml
from tests.fuzz import forms
from tests.fuzz import harness

_OTHER = '4f6c08b3-2324-54ab-b04c-61c99d0c476c'
_IMAGE = 'a6a12670-7014-4cff-a563-cea949b57fb3'
_DATA = b'bitstream'


class LiveMigration(harness.Harness):
    """The message of a live migration: a JSON object of three mappings."""

    form = forms.Json

    def __init__(self):
        objects.register_all()
        self._xml = (harness.DATA / 'golden' / 'domain.xml').read_text()
        self._held = hostdev.ours(libvirt_xml.parse(self._xml)[1])

    def seeds(self) -> list[bytes]:
        data = objects.LibvirtLiveMigrateData()
        migration_message.announce(data, {
            device: '10de:2330 revision a1' for device in self._held})
        announced = dict(data.source_mdev_types)
        addresses = {alias: address for alias, (address, _text) in
                     migration_message.take_announced(data).items()}
        migration_message.answer(data, {
            device.alias: hostdev.Hostdev(device.address, naming.alias(
                'ACCEL0', _OTHER, number))
            for number, device in enumerate(self._held)}, addresses)
        return [json.dumps(message).encode() for message in (
            {'source_mdev_types': announced}, {
                'source_mdev_types': announced,
                'target_mdevs': data.target_mdevs,
                'pci_dev_map_src_dst': data.pci_dev_map_src_dst})]

    def run(self, content: bytes) -> bool:
        try:
            loaded = json.loads(content)
            data = objects.LibvirtLiveMigrateData(**{
                name: loaded[name] for name in (
                    'source_mdev_types', 'target_mdevs', 'pci_dev_map_src_dst')
                if name in loaded})
        except (ValueError, TypeError, RecursionError):
            # Nova refuses it.
            return False
        announced = migration_message.take_announced(data)
        assert all(len(pair) == 2 for pair in announced.values())
        planned = migration_message.planned_hostdevs(data)
        if planned:
            try:
                migration_message.MigratingGuest(self, data).get_xml_desc()
            except errors.AssignmentError as error:
                harness.check_error(error)
                return False
        return bool(planned or announced)

    def get_xml_desc(self) -> str:
        """Return the XML of the guest, as Nova's Guest does."""
        return self._xml


class Bitstreams(harness.Harness):
    """The metadata of a bitstream's image in Glance, a JSON object."""

    form = forms.Json

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        conf.register_opts(nova.conf.CONF)
        nova.conf.CONF([], project='nova', default_config_files=[])
        nova.conf.CONF.set_override('state_path', self._folder.name)
        self._context = context.RequestContext(auth_token='x')

    def seeds(self) -> list[bytes]:
        image = {
            'id': _IMAGE, 'status': 'active', 'size': len(_DATA),
            'os_hash_algo': 'sha512',
            'os_hash_value': hashlib.sha512(_DATA).hexdigest(),
            'properties': {'accel:function_id': _OTHER,
                           'accel:region_type_id': _OTHER.replace('-', ''),
                           'accel:vendor': 'Intel'}}
        return [json.dumps({**image, **changes}).encode() for changes in (
            {}, {'properties': {'function_uuid': _OTHER, 'vendor': '8086'}},
            {'os_hash_algo': None, 'os_hash_value': None,
             'checksum': hashlib.md5(_DATA).hexdigest()},
            {'os_hash_algo': 'shake_128'}, {'os_hash_algo': '../sha1'},
            {'size': None}, {'size': 1 << 60}, {'size': 3})]

    def run(self, content: bytes) -> bool:
        try:
            loaded = json.loads(content)
        except (ValueError, RecursionError):
            return False
        if not isinstance(loaded, dict):
            # Nova makes a dict of what Glance sends.
            return False
        with mock.patch.object(glance, 'API') as api:
            api().get.return_value = loaded
            api().download.side_effect = _download
            try:
                found = bitstreams.fetch(self._context, _IMAGE)
            except errors.AssignmentError as error:
                harness.check_error(error)
                return False
        for region in (frozenset(), {'0' * 32}):
            try:
                found.check_fits('8086', region)
            except errors.AssignmentError as error:
                harness.check_error(error)
        return True


def _download(_context, _image, data, trusted_certs):
    data.write(_DATA)
