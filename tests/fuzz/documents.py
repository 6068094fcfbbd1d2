# SPDX-License-Identifier: Apache-2.0
"""Files and options that operators write, and extra specs of flavors."""

import json
import os
import re
import tempfile

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.device_spec import spec_entry
from nova_accel.core.request import affinity
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from nova_accel.host import link_domains
from nova_accel.host import reader
from nova_accel.host import tree as trees
from nova_accel.profiles import document
from tests.fuzz import forms
from tests.fuzz import harness

_GROUP = '- {resources: {CUSTOM_X: 1}, name: a, count: %d}\n'

#: Cheap to write, and once slow to load.
_COSTLY_PROFILES = (
    'name: x\ngroups:\n- resources: {CUSTOM_X: 1' + ':1' * 200_000 + '}\n',
    'name: x\ngroups:\n- resources: {CUSTOM_X: 0x' + 'f' * 500_000 + '}\n',
    '---\n1\n' * 80_000,
    '[' + '[],' * 170_000 + ']',
    '[' * 500_000,
    '{' + ','.join(f'a{number}: 1' for number in range(40_000)) + '}',
    'name: x\ngroups:\n' + _GROUP % 1 * 15_000,
    'name: x\ngroups:\n' + _GROUP % 256 + 'affinity:\n'
    + '- {same: numa_node, each: true}\n' * 15_000,
    'name: x\ngroups:\n' + _GROUP % 256 + 'affinity:\n- same: pcie_switch\n'
    + '- {distinct: device, policy: preferred}\n' * 12_000,
    'name: x\ngroups:\n' + _GROUP % 256
    + 'affinity:\n- {same: numa_node, groups: [' + 'a,' * 250_000 + ']}\n',
    'name: x\ngroups:\n- resources: {CUSTOM_X: 1}\n  traits: {' + ','.join(
        f'CUSTOM_X{number}: required' for number in range(18_000)) + '}\n',
    'name: x\ngroups:\n- resources: {CUSTOM_X: 1}\n  any_of:\n' + ''.join(
        '  - [' + ','.join(f'CUSTOM_X{number * 3000 + trait}' for trait
                           in range(3000)) + ']\n' for number in range(8)),
    'name: x\ngroups:\n' + ''.join(
        '- resources: {CUSTOM_X: 1}\n  any_of: ['
        + ','.join(f'[CUSTOM_{group}, CUSTOM_X{number}]'
                   for number in range(8)) + ']\n' for group in range(256)),
    ''.join(f'- &a{number} 1\n' for number in range(40_000)),
    '- &a [x, x]\n' + ''.join(
        f'- &b{number} [*a, *a]\n' for number in range(20)))


class Profiles(harness.Harness):
    """Files of device profiles, up to the extra specs of a flavor."""

    form = forms.Yaml

    def seeds(self) -> list[bytes]:
        return [*harness.files('etc/nova_accel/device_profiles.d/*',
                               'tests/data/profiles/*.json'),
                *(block for block in harness.blocks('yaml')
                  if b'resources' in block)]

    def whole(self) -> list[bytes]:
        return [text.encode() for text in _COSTLY_PROFILES]

    def run(self, content: bytes) -> bool:
        text = content[:document.MAX_BYTES].decode(errors='replace')
        found = []
        for source in ('x.yaml', 'x.json'):
            try:
                profiles, problems = document.read(text, source, 'x')
            except errors.ProfileError as error:
                harness.check_error(error)
            else:
                found += profiles
                for error in problems:
                    harness.check_error(error)
        for profile in found:
            self._expand(profile)
        return bool(found)

    def _expand(self, profile) -> None:
        try:
            specs = flavor_specs.expand(profile, {
                flavor_specs.PROFILE_KEY: profile.name, 'resources:VCPU': '1'})
        except errors.ProfileError as error:
            harness.check_error(error)
            return
        read = flavor_request.Request(specs)
        assert len(read.groups) == len(profile.groups)
        assert set(profile.rules) <= set(read.rules)
        assert [group.any_of for group in read.groups.values()] == [
            group.any_of for group in profile.groups]


class Flavors(harness.Harness):
    """Extra specs of a flavor: a JSON object of texts."""

    form = forms.Json

    def seeds(self) -> list[bytes]:
        found = []
        for content in Profiles().seeds():
            profiles, _problems = document.read(content.decode(), 'x.yaml')
            for profile in profiles:
                specs = flavor_specs.expand(
                    profile, {flavor_specs.PROFILE_KEY: profile.name})
                found.append(json.dumps(specs).encode())
        return found

    def run(self, content: bytes) -> bool:
        try:
            loaded = json.loads(content)
        except (ValueError, RecursionError):
            return False
        if not isinstance(loaded, dict):
            return False
        specs = {key: str(value) for key, value in loaded.items()}
        read = flavor_request.Request(specs, ['CUSTOM_X'])
        for value in (read.name, read.group_names, read.amounts, read.units,
                      read.programs, read.all_traits, read.guest_switches,
                      read.gpu_cliques, read.alternatives):
            repr(value)
        for name in read.groups:
            read.traits(name)
        try:
            read.checked().has_member(affinity.GUEST)
        except errors.ProfileError as error:
            harness.check_error(error)
            return False
        return bool(read.groups)


class DeviceSpec(harness.Harness):
    """Values of the option ``device_spec``, tried on a small machine."""

    form = forms.Json

    def __init__(self):
        self._decide = [reader.read_machine(trees.open_tree(
            harness.DATA / 'hosts' / name)) for name in (
            'l1-fpga.json', 'h200-guest.json', 'l40s-modelled.json')]

    def seeds(self) -> list[bytes]:
        found = [match.encode() for page in sorted(
                     [*harness.ROOT.glob('doc/source/**/*.rst'),
                      *harness.ROOT.glob('etc/nova_accel/*.sample')])
                 for match in re.findall(r'device_spec = (\{.*\})$',
                                         page.read_text(), re.MULTILINE)]
        for content in harness.files('tests/data/field/*.yaml'):
            [machine] = forms.YamlTexts.loads(content)
            found += [json.dumps(each['entries']).encode()
                      for each in machine['tries'] if each.get('entries')]
        return [*found, *(json.dumps(item).encode() for item in (
            {'vendor_id': '10de', 'mdev_type': '(a*)*b|(a|aa)+$'},
            # The time that an operator's own expressions take has no bound.
            {'address': {'bus': '8[1-4]|c1', 'domain': '(?!0001)'}},
            {'vendor_id': '*', 'address': '*:*:*.*', 'reset': 'flr',
             'traits': 'A,B', 'num_vfs': 'all', 'one_time_use': 'yes',
             'keeps_data': 1, 'managed': 'no', 'live_migratable': True},
            {'kind': 'declared', 'vendor_id': '8086',
             'regions_file': str(harness.DATA / 'kinds' / 'declared.json')},
            {'vendor_id': '10de', 'vgpu_type': [1155, 'NVIDIA L40S-1Q'],
             'max_instances': 2},
            {'vendor_id': '8086', 'program': ['/x', '{bitstream}', '{region}'],
             'program_timeout': 5}))]

    def run(self, content: bytes) -> bool:
        text = content.decode(errors='replace')
        entries, problems = reader.parse([text])
        for error in problems:
            harness.check_error(error)
        foreign = spec_entry.parse_foreign([text], '[pci] device_spec')
        for decide in self._decide:
            host = decide(entries)
            spec_entry.claimed(host.functions, entries, foreign)
        return bool(entries)


class LinkDomains(harness.Harness):
    """Files of the option ``link_domains``."""

    form = forms.YamlTexts

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._number = 0

    def seeds(self) -> list[bytes]:
        return [*harness.files('tests/data/links/*'),
                *(block for block in harness.blocks('yaml')
                  if b'devices:' in block),
                b'islands: [{devices: [1:1:1, 0000:44:00.0]}]',
                b'partitions: [{devices: [0000:01:00.0], name: a}, '
                b'{devices: [0000:01:00.0, 00000000:02:00.0]}]']

    def whole(self) -> list[bytes]:
        return [text.encode() for text in (
            'islands:\n' + '- devices: ["0000:01:00.0"]\n' * 4096,
            'islands:\n- devices: [' + '"0000:01:00.0",' * 34_000 + ']\n',
            'islands:\n- devices: [' + ','.join(
                f'{number:04x}:01:00.0' for number in range(30_000)) + ']\n',
            'islands:\n- devices: [1' + ':1' * 200_000 + ']\n')]

    def run(self, content: bytes) -> bool:
        # Files are cached by their path and the time of their last change.
        self._number += 1
        path = os.path.join(self._folder.name, str(self._number))
        with open(path, 'wb') as file:
            file.write(content)
        try:
            links = link_domains.load(path)
            _found, problems = link_domains.read(trees.Recording(), (), links)
        except errors.LinksError as error:
            harness.check_error(error)
            return False
        finally:
            os.unlink(path)
        assert all(problem.isprintable() for problem in problems)
        return links != model.Links()
