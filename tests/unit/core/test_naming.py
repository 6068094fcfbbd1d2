# SPDX-License-Identifier: Apache-2.0
"""Names that other programs see."""

import re
import uuid

from hypothesis import given
from hypothesis import strategies as st
import os_resource_classes as orc
import os_traits
import pytest

from nova_accel.core import naming
from tests.unit import build


@pytest.mark.parametrize('name, accepted', [
    ('PGPU', True),
    ('VGPU', True),
    ('FPGA', True),
    ('CUSTOM_GPU', True),
    ('CUSTOM_' + 'A' * 173, True),
    ('CUSTOM_' + 'A' * 174, False),
    ('CUSTOM_', False),
    ('CUSTOM_lower-case', False),
    ('CUSTOM_A\n', False),
    ('GPU', False),
    ('VCPU', False),
    ('PCPU', False),
    ('MEMORY_MB', False),
    ('DISK_GB', False),
    ('', False),
])
def test_a_class_is_standard_or_custom_and_not_novas_own(name, accepted):
    assert naming.is_resource_class(name) is accepted


@pytest.mark.parametrize('name, accepted', [
    (os_traits.HW_GPU_API_VULKAN, True),
    ('CUSTOM_NVLINK', True),
    ('CUSTOM_' + 'A' * 248, True),
    ('CUSTOM_' + 'A' * 249, False),
    ('CUSTOM_nvlink', False),
    ('HW_GPU_API_NONESUCH', False),
    ('NVLINK', False),
    ('', False),
])
def test_a_trait_is_standard_or_custom(name, accepted):
    assert naming.is_trait(name) is accepted


@pytest.mark.parametrize('text, name', [
    ('PGPU', 'PGPU'),
    (' pgpu ', 'PGPU'),
    ('CUSTOM_GPU', 'CUSTOM_GPU'),
    ('custom_gpu', 'CUSTOM_GPU'),
    ('A100 80GB', 'CUSTOM_A100_80GB'),
    ('A100 (80GB)', 'CUSTOM_A100_80GB_'),
    ('CUSTOM_A100 - 80GB', 'CUSTOM_A100_80GB'),
    ('custom_a__b', 'CUSTOM_A__B'),
    ('gpu', 'CUSTOM_GPU'),
    ('é', 'CUSTOM__'),
])
def test_free_text_becomes_a_class(text, name):
    assert naming.normalise_resource_class(text) == name


@pytest.mark.parametrize('text, name', [
    ('hw_gpu_api_vulkan', os_traits.HW_GPU_API_VULKAN),
    ('nvlink', 'CUSTOM_NVLINK'),
    ('CUSTOM_X', 'CUSTOM_X'),
    ('with-hyphen', 'CUSTOM_WITH_HYPHEN'),
    ('with, more', 'CUSTOM_WITH_MORE'),
])
def test_free_text_becomes_a_trait(text, name):
    assert naming.normalise_trait(text) == name


@given(st.text(max_size=200))
def test_normalised_names_are_valid_and_normalisation_is_idempotent(text):
    trait = naming.normalise_trait(text)
    name = naming.normalise_resource_class(text)
    assert naming.normalise_trait(trait) == trait
    assert naming.normalise_resource_class(name) == name
    if text.strip():
        assert naming.is_trait(trait) or len(trait) > 255
        assert (naming.is_resource_class(name)
                or len(name) > naming.MAX_CLASS
                or name in naming.NOVAS_OWN_CLASSES)


def test_novas_own_classes_are_standard_ones():
    assert naming.NOVAS_OWN_CLASSES <= set(orc.STANDARDS)


def test_default_class_is_the_same_as_in_nova():
    assert naming.default_resource_class(
        '10de', '20b0') == 'CUSTOM_PCI_10DE_20B0'


def test_providers_are_named_after_host_and_address():
    region = build.region('CUSTOM_QAT')
    device = build.device(region)
    assert naming.device_provider_name('host1', device) == (
        'host1_accel_0000:81:00.0')
    assert naming.region_provider_name('host1', device, region) == (
        'host1_accel_0000:81:00.0_CUSTOM_QAT')


@pytest.mark.parametrize('facts, name', [
    (('PGPU', frozenset(), True), 'PGPU'),
    (('PGPU', frozenset(), False), 'PGPU_[0-9a-f]{8}'),
    (('PGPU', frozenset({'CUSTOM_X'}), True), 'PGPU_[0-9a-f]{8}'),
])
def test_region_name_has_class_and_variant_or_digest(
        facts, name):
    assert re.fullmatch(name, naming.region_name(*facts))


def test_different_regions_have_different_and_stable_names():
    kinds = [('PGPU', frozenset(traits), managed)
             for traits in ((), 'X', 'Y', ('X', 'Y'))
             for managed in (True, False)]
    names = [naming.region_name(*kind) for kind in kinds]
    assert len(set(names)) == len(kinds)
    assert names[6] == naming.region_name(
        'PGPU', frozenset(('Y', 'X')), True) == 'PGPU_5be315e4'


def test_long_names_are_shortened_to_the_limit_and_stay_unique():
    region = build.region()
    devices = [build.device(region, at=f'0000:81:00.{number}')
               for number in range(8)]
    long = 'h' * 190
    names = {naming.device_provider_name(long, device)
             for device in devices}
    names |= {naming.region_provider_name(long + end, device, region)
              for device in devices for end in ('a', 'b')}
    assert len(names) == 24
    assert all(len(name) <= 200 for name in names)
    assert all(name.startswith('hhh') for name in names)


def test_name_of_the_maximal_length_is_not_shortened():
    device = build.device(build.region())
    host = 'h' * (200 - len('_accel_0000:81:00.0'))
    assert naming.device_provider_name(host, device) == (
        f'{host}_accel_0000:81:00.0')


def test_provider_uuid_is_deterministic():
    address = build.address('0000:81:00.0')
    assert naming.provider_uuid(build.ROOT, address) == str(uuid.uuid5(
        uuid.UUID(build.ROOT), 'accel/0000:81:00.0'))
    assert naming.provider_uuid(build.ROOT, address, 'CUSTOM_QAT') == str(
        uuid.uuid5(uuid.UUID(build.ROOT), 'accel/0000:81:00.0/CUSTOM_QAT'))


def test_provider_uuids_differ_by_host_and_device():
    one, two = map(build.address, ('0000:81:00.0', '0000:81:00.1'))
    other = str(uuid.uuid4())
    uuids = {naming.provider_uuid(*key) for key in (
        (build.ROOT, one), (build.ROOT, two), (other, one),
        (build.ROOT, one, 'A'), (build.ROOT, one, 'B'))}
    assert len(uuids) == 5


@given(st.sampled_from(['', 'ACCEL0', 'ACCEL255', 'a-b']), st.uuids(),
       st.integers(0, 5000), st.sampled_from(['', '10de:2330', '1bcf:001c']),
       st.sampled_from(['', 'nvidia-471', '1154_:_NVIDIA_L40S-16Q']),
       st.sampled_from([None, '0000:81:00.0', '10000:ff:1f.7']))
def test_alias_is_valid_for_libvirt_and_can_be_parsed(group, provider, index,
                                                      ids, variant, card):
    card = card and build.address(card)
    alias = naming.alias(group, str(provider), index, ids, variant, card)
    assert re.fullmatch(r'ua-[A-Za-z0-9_-]+', alias)
    assert naming.parse_alias(alias) == (group or 'flavor', str(provider))
    assert naming.ids_of_alias(alias) == ids
    assert naming.card_of_alias(alias) == card
    assert naming.is_of_variant(alias, variant) is (bool(variant) or None)
    assert not naming.is_of_variant(alias, 'nvidia-468')


@pytest.mark.parametrize('text', [
    '', 'hostdev0', 'ua-mine', 'ua-accel-ACCEL0-no-uuid-0',
    f'ua-accel-ACCEL0-{build.ROOT}', f'ua-accel--{build.ROOT}-0',
    f'ua-accel-ACCEL0-{build.ROOT}-x', f'ua-accel-ACCEL0-{build.ROOT}-0\n',
    f'ua-accel-ACCEL0-{build.ROOT}-0-10de', f'ua-accel-{build.ROOT}-10de2330',
])
def test_alias_of_another_program_is_not_ours(text):
    assert naming.parse_alias(text) is None
    assert naming.ids_of_alias(text) == ''


@given(st.from_regex(r'CUSTOM_[A-Z0-9_]{1,173}', fullmatch=True)
       | st.sampled_from(['PGPU', 'VGPU', 'FPGA', 'CUSTOM_' + 'A' * 173]),
       st.sampled_from([1, 5, 20, 40, 50]))
def test_class_of_units_contains_the_class(name, times):
    counting = naming.unit_class(name)
    assert naming.class_of_units(counting) == name
    assert naming.class_of_units(name) is None
    # It is no class that devices have or profiles ask for.
    assert not naming.is_resource_class(counting)
    provider = naming.class_provider_name('host1' * times, name)
    assert naming.class_of_provider(provider) == name
    assert len(provider) <= 200


def test_provider_of_a_device_is_not_that_of_a_class():
    for name in ('host1_accel_0000:81:00.0', 'a_accel_0000:81:00.0_PGPU',
                 'host1_accel_matrix', 'a_accel_b', 'PGPU'):
        assert naming.class_of_provider(name) is None


@pytest.mark.parametrize('is_name', [naming.is_mdev_type,
                                     naming.is_parent_name])
@pytest.mark.parametrize('text, accepted', [
    ('nvidia-468', True), ('0.0.0313', True), ('.a', True), ('a.', True),
    ('a' * 255, True), ('', False), ('.', False), ('..', False),
    ('a/b', False), ('a\n', False), ('é', False),
    # It is checked in linear time.
    ('a' * 500_000 + '/', False), ('.' * 500_000, False)])
def test_only_safe_names_in_sysfs_are_accepted(is_name, text, accepted):
    assert is_name(text) is accepted
