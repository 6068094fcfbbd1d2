# SPDX-License-Identifier: Apache-2.0
"""Which devices ``isolation = strict`` refuses, and what the others have."""

from oslo_config import cfg
import pytest

from nova_accel import conf
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.device_spec import cleaner
from nova_accel.core.device_spec import policy
from nova_accel.core.device_spec import unsafe_host
from nova_accel.core.placement import providers
from nova_accel.host import reader
from tests.unit import build

_CLEANERS = {'wipe': cleaner.Cleaner('wipe', ('/x',), ('/y',))}
_STANDARD = policy.Policy(True, _CLEANERS)
_STRICT = policy.Policy(True, _CLEANERS, True)

_NVME, _SATA, _FLASH = 0x010802, 0x010601, 0x018000
_CLEAN, _ONCE = {'clean': 'wipe'}, {'one_time_use': 'yes'}
_KEEPS = {'keeps_data': 'yes'}
_FPGA = {'kind': 'fpga', 'program': 'fpga_manager'}


def _functions(methods=('flr', 'pm'), class_code=build.GPU, vf=False):
    """Return a card, or one with a virtual function."""
    if not vf:
        return [build.function('0000:81:00.0', class_code=class_code,
                               reset_methods=methods)]
    return [build.function('0000:81:00.0', '1:1', total_vfs=1, num_vfs=1),
            build.function('0000:81:00.1', class_code=class_code,
                           reset_methods=methods, physfn='0000:81:00.0')]


def _regions(host):
    return [region for device in host.devices for region in device.regions]


_DISK = 'it is a storage controller'
_LOGIC = 'it can be programmed'


@pytest.mark.parametrize('functions, entry, says', [
    (_functions(), {}, ''),
    (_functions(), {'reset': 'flr'}, ''),
    (_functions(('acpi', 'pm')), {}, ''),
    (_functions(None), {}, 'sysfs does not show how it is reset'),
    (_functions(), {'reset': 'if_possible'}, 'its entry says "reset": '),
    (_functions(('pm',)), {'reset': 'if_possible'}, 'its entry says "reset"'),
    (_functions(class_code=_SATA), {}, _DISK),
    (_functions(class_code=_FLASH), {}, _DISK),
    (_functions(class_code=_SATA), _CLEAN, ''),
    (_functions(class_code=_SATA), _ONCE, ''),
    (_functions(class_code=_NVME), _CLEAN, ''),
    (_functions(class_code=_NVME), _ONCE, ''),
    (_functions(class_code=_NVME), _KEEPS, 'its entry says keeps_data; '
     + _DISK),
    (_functions(class_code=_NVME), _KEEPS | _CLEAN, 'its entry says keeps_'),
    (_functions(), _KEEPS, 'its entry says keeps_data'),
    (_functions(), {'compare_firmware': 'no'}, 'its entry says "compare_'),
    (_functions(class_code=_NVME, vf=True), _KEEPS, 'its entry says keeps_'),
    (_functions(class_code=_NVME, vf=True), _CLEAN, ''),
    (_functions(vf=True), {}, ''),
    (_functions(), _FPGA, _LOGIC), (_functions(vf=True), _FPGA, _LOGIC),
    (_functions(), {'kind': 'fpga'}, _LOGIC),
    (_functions(), _FPGA | _CLEAN, ''), (_functions(), _FPGA | _ONCE, ''),
    (_functions(vf=True), _FPGA | _CLEAN, '')])
def test_what_is_refused(functions, entry, says):
    entries = build.entries({'vendor_id': '10de', **entry})
    [before] = _regions(build.offer(functions, entries, policy=_STANDARD))
    assert before.total == 1
    assert naming.STRICT_TRAIT not in before.traits
    host = build.offer(functions, entries, policy=_STRICT)
    [region] = _regions(host)
    # A server that has the unit keeps it.
    assert (region.name, region.units) == (before.name, before.units)
    assert region.total == (not says)
    assert region.traits == before.traits.union(
        [naming.STRICT_TRAIT] * (not says))
    assert [refusal.states for refusal in host.refusals] == [
        (model.WithheldState.NOT_STRICT,)] * bool(says)
    for refusal in host.refusals:
        assert refusal.reason.startswith(
            f'isolation = strict refuses it: {says}')
        assert refusal.remedy
    assert not host.problems


@pytest.mark.parametrize('name, spec', [
    ('l1', {'vendor_id': '10de', 'mdev_type': 'nvidia-471'}),
    ('l40s-modelled', {'vendor_id': '10de', 'vgpu_type': '1154'})])
def test_parts_that_only_a_driver_resets_are_refused(name, spec):
    entries = build.entries(spec)
    before, after = (_regions(reader.read(
        build.recorded(name), entries, policy=policy_))
        for policy_ in (_STANDARD, _STRICT))
    assert sum(region.total for region in before)
    assert not sum(region.total for region in after)
    assert [(region.name, region.units, region.traits) for region in before
            ] == [(region.name, region.units, region.traits)
                  for region in after]


@pytest.mark.parametrize('hazard', unsafe_host.Hazard)
@pytest.mark.parametrize('allowed', [True, False])
def test_unsafe_host_offers_nothing(hazard, allowed):
    host = build.offer(_functions(), build.entries({}), hazards=[hazard],
                       policy=policy.Policy(allowed, strict=True))
    assert not host.units.total()
    [refusal] = host.refusals
    assert hazard.reason in refusal.reason
    assert 'allow_unsafe_host' not in refusal.remedy
    assert not host.problems


def test_all_reasons_are_named():
    withheld = {build.address('0000:81:00.0'): [model.Withheld('it is dull')]}
    host = build.offer(_functions(class_code=_NVME), build.entries(
        {'reset': 'if_possible', **_KEEPS}), policy=_STRICT, withheld=withheld)
    [refusal] = host.refusals
    for text in ('it is dull', 'if_possible', 'keeps_data', _DISK):
        assert text in refusal.reason
    assert refusal.remedy.split('; ') == [
        'take reset out of its entry', 'take keeps_data out of its entry',
        'name a cleaner in its entry, "clean": "NAME"']
    assert set(refusal.states) == {model.WithheldState.UNHEALTHY,
                                   model.WithheldState.NOT_STRICT}


def test_one_of_two_units_is_refused():
    functions = build.card('0000:81:00.0', 2)
    functions[1:] = [build.function(
        f'0000:81:00.{number}', '8086:37c9', physfn='0000:81:00.0',
        reset_methods=methods)
        for number, methods in ((1, ('flr',)), (2, None))]
    host = build.offer(functions, build.entries(
        {'vendor_id': '8086', 'product_id': '37c9'}), policy=_STRICT)
    [region] = _regions(host)
    assert build.units(host) == {region.name: ['0000:81:00.1']}
    assert naming.STRICT_TRAIT in region.traits


def test_providers_tell_what_is_strict():
    functions = [build.function(f'0000:8{number}:00.0', reset_methods=methods)
                 for number, methods in ((1, ('flr',)), (2, None))]
    here = build.inventory(build.offer(functions, build.entries({}),
                                       policy=_STRICT))
    found = {provider.name.rpartition('_accel_')[2]: (
        naming.STRICT_TRAIT in provider.traits,
        'CUSTOM_NOVA_ACCEL_NOT_STRICT' in provider.traits,
        sum(values['total'] - values['reserved']
            for values in provider.inventory.values()))
        for provider in (*providers.desired(here), *providers.classes(here))}
    assert found == {'0000:81:00.0': (True, False, 1),
                     '0000:82:00.0': (False, True, 0),
                     'CUSTOM_PCI_10DE_2330': (True, False, 1)}


def test_names_of_regions_stay():
    """Names of Regions are part of the uuids of their providers."""
    functions = build.card('0000:81:00.0', 2)
    functions[1:] = [build.function(
        f'0000:81:00.{number}', '8086:37c9', physfn='0000:81:00.0',
        reset_methods=('flr',)) for number in (1, 2)]
    entries = build.entries(
        {'address': '0000:81:00.1', 'live_migratable': 'yes', 'traits': 'a'},
        {'address': '0000:81:00.2', 'traits': 'a'})
    names = [[region.name for region in _regions(build.offer(
        functions, entries, policy=policy_))]
        for policy_ in (_STANDARD, _STRICT)]
    assert names[0] == names[1]
    assert len(set(names[0])) == 2


@pytest.mark.parametrize('value, expected', [
    (None, False), ('standard', False), ('strict', True)])
def test_option(value, expected):
    config = cfg.ConfigOpts()
    conf.register_opts(config)
    config([], default_config_files=[])
    if value:
        config.set_override('isolation', value, 'nova_accel')
    assert conf.policy(config).strict is expected
