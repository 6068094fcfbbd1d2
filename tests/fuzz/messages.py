# SPDX-License-Identifier: Apache-2.0
"""What other programs and hosts say: libvirt, compute nodes, commands."""

import base64
import json
import os
import random
import tempfile
import zlib

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.fabric import fmpm
from nova_accel.core.fabric import manager as fabric_manager
from nova_accel.core.fabric import module_map
from nova_accel.core.placement import host_summary
from nova_accel.core.placement import inventory
from nova_accel.host import commands
from nova_accel.host import libvirt_xml
from nova_accel.host import reader
from nova_accel.host import tree as trees
from tests import fmpm as stand_in
from tests.fuzz import forms
from tests.fuzz import harness
from tests.unit import build


class Domains(harness.Harness):
    """The XML of libvirt's domains."""

    form = forms.Xml

    def seeds(self) -> list[bytes]:
        return [*harness.files('tests/data/golden/*.xml'),
                b'<domain><uuid/><devices><hostdev><source><address uuid="x"/>'
                b'</source></hostdev></devices></domain>']

    def run(self, content: bytes) -> bool:
        xml = content.decode(errors='replace')
        try:
            _uuid, held = libvirt_xml.parse(xml)
            buses = libvirt_xml.guest_buses_of(xml)
            for device in held:
                if device.guest_address:
                    buses.position(device.guest_address)
            libvirt_xml.numa_cells_of(xml)
            changed = libvirt_xml.with_aliases(
                xml, {device.address: 'ua-x' for device in held})
            assert all(device.alias == 'ua-x'
                       for device in libvirt_xml.parse(changed)[1])
        except errors.AssignmentError as error:
            harness.check_error(error)
            return False
        return bool(held)


class HostSummary(harness.Harness):
    """The text of a compute node that every scheduler reads."""

    form = forms.Json

    def seeds(self) -> list[bytes]:
        found = []
        for path in sorted(harness.DATA.glob('hosts/*.json')):
            host = reader.read(trees.open_tree(path), build.entries({}))
            here = inventory.NodeInventory(
                host, inventory.Node(build.ROOT, 'host'))
            for links in (host.links, model.Links(
                    tuple(frozenset({str(one), 'x'}) for one in
                          (device.address for device in host.devices)))):
                found.append(_unpack(host_summary.dumps(
                    here.offered, {}, links, {2: 0})))
        return found

    def whole(self) -> list[bytes]:
        zeros = zlib.compress(bytes(32 << 20))
        return [_pack(b'0' * (1 << 20)), b'zlib:' + base64.b64encode(zeros),
                b'zlib:' + base64.b64encode(zeros)[:12_000],
                _pack(b'[' * 200_000), _pack(json.dumps({
                    'v': 2, 'places': [[0]], 'names': [*map(hex, range(9000))],
                    'cards': [['a', 0, [[number, 1, 1]
                                        for number in range(9000)]]],
                    }).encode()),
                _pack(json.dumps({'partitions': [[*range(9)]] * 9000}
                                 ).encode()),
                _pack(b'{"v":2,"places":[[%b]]}' % (b'9' * 4300)),
                _pack(b'{"v":2,"places":[[NaN]],"cards":[["a",0,[[null,'
                      b'Infinity,1]]]]}')]

    def wrap(self, rng: random.Random, content: bytes) -> bytes:
        return content if rng.random() < 0.7 else _pack(content)

    def run(self, content: bytes) -> bool:
        read = host_summary.loads(content.decode(errors='replace'),
                                  build.ROOT)
        assert read.places.keys() == read.units.keys()
        return bool(read.places)


class CommandOutput(harness.Harness):
    """What a vendor's command prints, up to the text of an error."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()

    def seeds(self) -> list[bytes]:
        return [b'', b'programmed\n', b'100%\r\n', b'\xff\0\n',
                b'\x1b[31mError:\x1b[0m cannot open /dev/x: busy\n',
                'Fehler: Gerät\n'.encode('latin-1'), 'é'.encode() * 3000,
                b"it's \"quoted\"\\\n" * 5, b'a' * commands.MAX_OUTPUT]

    def whole(self) -> list[bytes]:
        return [bytes(64 << 20), b'x\n' * (16 << 20)]

    def run(self, content: bytes) -> bool:
        path = os.path.join(self._folder.name, 'output')
        with open(path, 'wb') as file:
            file.write(content)
        code, output = commands.run(['/bin/cat', path], 60)
        assert (code, output) == (0, content[-commands.MAX_OUTPUT:])
        text = commands.describe('/bin/cat', 1, output, 60)
        assert text.isprintable() and len(text) <= commands.MAX_OUTPUT
        return True


class Fmpm(harness.Harness):
    """What NVIDIA's fmpm and nvidia-smi print."""

    form = forms.Json

    def __init__(self):
        with tempfile.TemporaryDirectory() as folder:
            manager = stand_in.FabricManager(
                folder, failed_gpus={'GPU-1': [3]}, tells_addresses=True,
                addresses={1: '0000:86:00.0'})
            self._printed = [
                commands.run([manager.fmpm, word], 60,
                             limit=fmpm.MAX_OUTPUT)[1]
                for word in ('-l', '--get-nvlink-failed-devices')]
            self._smi = commands.run([manager.nvidia_smi], 60)[1]

    def seeds(self) -> list[bytes]:
        return [*self._printed, self._smi, b'Failed to connect to Fabric '
                b'Manager instance.\n',
                b'Failed to activate partition. fmReturn: -7\n']

    def whole(self) -> list[bytes]:
        return [b'{"partitionInfo":' * 50_000, b'{' * fmpm.MAX_OUTPUT,
                b'<gpu id="0000:00:00.0">' * 100_000,
                b'fmReturn: -' + b'9' * 1_000_000]

    def run(self, content: bytes) -> bool:
        text = content.decode('utf-8', 'replace')
        found = []
        for operation in (fmpm.LIST, fmpm.ACTIVATE, fmpm.DEACTIVATE):
            for code in (None, 1, 249):
                harness.check_error(fmpm.failure(operation, code, text, 'x'))
        for read in (fmpm.read_partitions, fmpm.read_failed_links):
            try:
                found.extend(read(text, 'x'))
            except fabric_manager.FabricError as error:
                harness.check_error(error)
        try:
            found.extend(module_map.read(text))
        except ValueError as error:
            assert str(error).isprintable()
        module_map.loads(text)
        return bool(found)


def _pack(plain: bytes) -> bytes:
    return b'zlib:' + base64.b64encode(zlib.compress(plain))


def _unpack(text: str) -> bytes:
    packed = text.removeprefix('zlib:')
    return text.encode() if packed == text else zlib.decompress(
        base64.b64decode(packed))
