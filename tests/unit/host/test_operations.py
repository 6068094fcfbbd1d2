# SPDX-License-Identifier: Apache-2.0
"""Operations: which attributes of sysfs are written, and which never."""

import shutil
import uuid

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory
from nova_accel.host import operations
from nova_accel.host import tree as trees
from nova_accel.host.kinds import mdev

_PARENT = '0000:81:00.0'
_UUID = str(uuid.uuid5(uuid.NAMESPACE_OID, 'x'))


@pytest.fixture
def sysfs(tmp_path):
    path = tmp_path / 'sys'
    mdev_type = (path / 'bus/pci/devices' / _PARENT
                 / 'mdev_supported_types/nvidia-471')
    mdev_type.mkdir(parents=True)
    (mdev_type / 'create').write_text('')
    (mdev_type.parent.parent / 'driver').mkdir()
    for name in ('sriov_numvfs', 'reset', 'reset_subordinate',
                 'driver/unbind'):
        (mdev_type.parent.parent / name).write_text('')
    device = path / 'bus/mdev/devices' / _UUID
    device.mkdir(parents=True)
    (device / 'remove').write_text('')
    return path


def _at(sysfs):
    return operations.Operations(str(sysfs))


def test_create_mdev_writes_to_the_type_of_the_parent(sysfs):
    _at(sysfs).create_mdev(_PARENT, 'nvidia-471', _UUID)
    assert (sysfs / 'bus/pci/devices' / _PARENT / 'mdev_supported_types'
            / 'nvidia-471/create').read_text() == _UUID


def test_remove_mdev_writes_to_the_mdev(sysfs):
    _at(sysfs).remove_mdev(_UUID)
    assert (sysfs / 'bus/mdev/devices' / _UUID / 'remove').read_text() == '1'


@pytest.mark.parametrize('write, arguments, name, text', [
    ('set_num_vfs', [16], 'sriov_numvfs', '16'),
    ('set_num_vfs', [0], 'sriov_numvfs', '0'),
    ('reset_function', [], 'reset', '1'),
    ('reset_behind', [], 'reset_subordinate', '1'),
    ('unbind_driver', [], 'driver/unbind', _PARENT)])
def test_operations_write_to_the_function(sysfs, write, arguments, name, text):
    getattr(_at(sysfs), write)(_PARENT, *arguments)
    assert (sysfs / 'bus/pci/devices' / _PARENT / name).read_text() == text


@pytest.mark.parametrize('methods, text', [
    (['flr'], 'flr'), (('af_flr', 'bus'), 'af_flr bus'), ([], 'default')])
def test_reset_methods_are_written_in_order(sysfs, methods, text):
    place = sysfs / 'bus/pci/devices' / _PARENT / 'reset_method'
    place.touch()
    _at(sysfs).set_reset_methods(_PARENT, methods)
    assert place.read_text() == text


@pytest.mark.parametrize('methods', [['default'], ['flr\n'], [''], ['FLR'],
                                     [1], 'flr'])
def test_unknown_reset_methods_raise(sysfs, methods):
    with pytest.raises(ValueError):
        _at(sysfs).set_reset_methods(_PARENT, methods)


def test_probe_driver_writes_the_address(sysfs):
    (sysfs / 'bus/pci/drivers_probe').touch()
    _at(sysfs).probe_driver(_PARENT)
    assert (sysfs / 'bus/pci/drivers_probe').read_text() == _PARENT


@pytest.mark.parametrize('link', ['', 'reset', 'driver'])
def test_link_out_of_sysfs_raises(sysfs, tmp_path, link):
    outside = tmp_path / 'outside'
    device = sysfs / 'bus/pci/devices' / _PARENT
    shutil.copytree(device, outside)
    (device / link).rename(tmp_path / 'away')
    (device / link).symlink_to(outside / link)
    write = 'unbind_driver' if link == 'driver' else 'reset_function'
    with pytest.raises(OSError, match='leads out of'):
        getattr(_at(sysfs), write)(_PARENT)
    assert {(outside / name).read_text()
            for name in ('reset', 'driver/unbind')} == {''}


def test_links_within_sysfs_are_followed(sysfs, tmp_path):
    device = sysfs / 'bus/pci/devices' / _PARENT
    place = sysfs / 'devices/pci0000:80' / _PARENT
    place.parent.mkdir(parents=True)
    device.rename(place)
    device.symlink_to(place)
    (tmp_path / 'link').symlink_to(sysfs)
    _at(tmp_path / 'link').reset_function(_PARENT)
    assert (place / 'reset').read_text() == '1'


@pytest.mark.parametrize('address', ['', '..', f'{_PARENT}/x', '81:00.0',
                                     f'{_PARENT}\n', f'../{_PARENT}'])
@pytest.mark.parametrize('write, arguments', [
    ('set_num_vfs', [1]), ('reset_function', []),
    ('reset_behind', []), ('unbind_driver', []), ('probe_driver', []),
    ('set_reset_methods', [['flr']])])
def test_invalid_address_raises(sysfs, write, arguments, address):
    with pytest.raises(ValueError):
        getattr(_at(sysfs), write)(address, *arguments)


@pytest.mark.parametrize('number', [-1, 65536, '1', 1.0, True, None])
def test_invalid_number_of_virtual_functions_raises(sysfs, number):
    with pytest.raises(ValueError):
        _at(sysfs).set_num_vfs(_PARENT, number)


@pytest.mark.parametrize('parent, mdev_type, address', [
    ('../../x', 'nvidia-471', _UUID), (_PARENT, '..', _UUID),
    (_PARENT, 'a/b', _UUID), (_PARENT, '', _UUID),
    (_PARENT, 'nvidia-471', '../x'), (_PARENT, 'nvidia-471', ''),
    (_PARENT, 'nvidia-471\n', _UUID)])
def test_invalid_arguments_of_create_mdev_raise(sysfs, parent, mdev_type,
                                                address):
    with pytest.raises(ValueError):
        _at(sysfs).create_mdev(parent, mdev_type, address)


@given(text=st.text())
def test_mdev_type_never_contains_a_path(text):
    assert not naming.is_mdev_type(text) or (
        '/' not in text and text not in ('', '.', '..') and '\0' not in text)


def test_missing_attribute_is_not_created(sysfs):
    with pytest.raises(FileNotFoundError):
        _at(sysfs).create_mdev(_PARENT, 'nvidia-1', _UUID)
    with pytest.raises(FileNotFoundError):
        _at(sysfs).reset_function('0000:82:00.0')
    with pytest.raises(FileNotFoundError):
        _at(sysfs / 'nowhere').remove_mdev(_UUID)


def _prepare(tree, device, region):
    mdev.Mdevs(tree).prepare(
        hostdev.Hostdev(model.MdevAddress(str(uuid.uuid4())), ''),
        inventory.Offered('', '', device, region), {})


def test_mdev_in_a_recording_raises(sysfs):
    region = model.Region('VGPU_x', 'VGPU', frozenset(), (
        (model.PciAddress.parse(_PARENT),),), variant='nvidia-471', mdevs=True)
    device = model.Device(model.PciAddress.parse(_PARENT), '10de:20b0',
                          model.Location(), (region,))
    with pytest.raises(errors.AssignmentError, match='recording'):
        _prepare(trees.Recording(), device, region)


def test_refusal_of_the_driver_names_the_device(sysfs):
    region = model.Region('VGPU_x', 'VGPU', frozenset(), (
        (model.PciAddress.parse(_PARENT),),), variant='nvidia-1', mdevs=True)
    device = model.Device(model.PciAddress.parse(_PARENT), '10de:20b0',
                          model.Location(), (region,))
    with pytest.raises(errors.AssignmentError) as raised:
        _prepare(trees.Directory(sysfs), device, region)
    assert '0000:81:00.0 (10de:20b0)' in str(raised.value)
    assert 'No such file' in str(raised.value)
