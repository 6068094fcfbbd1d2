# SPDX-License-Identifier: Apache-2.0
"""Devices that keep what a guest writes, and a cleaner for them."""

import pathlib
import stat

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.host import libvirt_xml

_SCRIPT = '''#!/bin/sh
cd "$(dirname "$0")" || exit 3
echo "$*" >> calls
while [ -e hang ]; do sleep 0.02; done
if [ -e "fail-$1" ]; then echo "it is broken"; exit 4; fi
case $1 in
clean) rm -f "content-$2" ;;
verify) [ ! -e "content-$2" ] ;;
esac
'''


class Cleaner(fixtures.Fixture):
    """A cleaner named ``wipe``, and the contents of devices.

    Each guest that starts writes its uuid to each of its devices.
    """

    def _setUp(self):
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        script = self.folder / 'cleaner'
        script.write_text(_SCRIPT)
        script.chmod(stat.S_IRWXU)
        self.option = (
            f'{{"name": "wipe", "timeout": 60, '
            f'"clean": ["{script}", "clean", "{{address}}"], '
            f'"verify": ["{script}", "verify", "{{address}}"]}}')
        #: Guests that found what others wrote.
        self.leaks = []
        create = fakelibvirt.Domain.createWithFlags

        def created(domain, *args):
            for device in libvirt_xml.parse(domain.XMLDesc(0))[1]:
                self._write(domain.UUIDString(), str(device.address))
            return create(domain, *args)

        self.useFixture(fixtures.MockPatchObject(
            fakelibvirt.Domain, 'createWithFlags', created))

    def _write(self, uuid, address):
        content = self.folder / f'content-{address}'
        if content.exists() and content.read_text() != uuid:
            self.leaks.append((uuid, address, content.read_text()))
        content.write_text(uuid)

    def calls(self):
        """Return the calls of the script, such as ``clean 0000:43:00.0``."""
        path = self.folder / 'calls'
        return path.read_text().splitlines() if path.exists() else []

    def note(self, call):
        """Note something among the calls."""
        with (self.folder / 'calls').open('a') as calls:
            calls.write(f'{call}\n')

    def dirty(self):
        """Return the addresses of devices with contents."""
        return {path.name.removeprefix('content-')
                for path in self.folder.glob('content-*')}

    def set(self, **flags):
        """Set flags of the script: ``hang``, ``fail_clean``, ``fail_verify``.
        """
        for name, value in flags.items():
            path = self.folder / name.replace('_', '-')
            path.touch() if value else path.unlink(missing_ok=True)
