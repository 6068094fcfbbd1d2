# SPDX-License-Identifier: Apache-2.0
"""The command line of fmpm, and what it prints."""

import json

import pytest

from nova_accel.core import model
from nova_accel.core.fabric import fmpm
from nova_accel.core.fabric import manager

_Failure = manager.Failure
_GPU = {'physicalId': 1, 'uuid': '', 'pciBusId': '',
        'numNvLinksAvailable': 17, 'maxNumNvLinks': 18,
        'nvlinkLineRateMBps': 26562}
_PARTITION = {'partitionId': 3, 'isActive': 1, 'numGpus': 1,
              'gpuInfo': [_GPU]}


def _listed(*partitions, **more):
    return json.dumps({'version': 1, 'numPartitions': len(partitions),
                       'maxNumPartitions': 15,
                       'partitionInfo': [*partitions], **more})


@pytest.mark.parametrize('operation, partitions, words', [
    (fmpm.LIST, [], ['-l']), (fmpm.ACTIVATE, [63], ['-a', '63']),
    (fmpm.DEACTIVATE, [0], ['-d', '0']),
    (fmpm.RESTORE, [2, 5], ['--set-activated-list', '2,5']),
    (fmpm.RESTORE, [], ['--set-activated-list', '']),
    (fmpm.FAILED_LINKS, [], ['--get-nvlink-failed-devices'])])
def test_words(operation, partitions, words):
    assert fmpm.words(['/bin/fmpm', '--hostname', 'x'], operation,
                      partitions) == ['/bin/fmpm', '--hostname', 'x', *words]


@pytest.mark.parametrize('operation, partitions', [
    ('-v', []), (fmpm.LIST, [1]), (fmpm.ACTIVATE, []),
    (fmpm.ACTIVATE, [1, 2]), (fmpm.ACTIVATE, [64]), (fmpm.DEACTIVATE, [-1]),
    (fmpm.DEACTIVATE, [True]), (fmpm.RESTORE, ['1 --hostname'])])
def test_invalid_words(operation, partitions):
    with pytest.raises(ValueError):
        fmpm.words(['/bin/fmpm'], operation, partitions)


def test_only_lists_have_a_shorter_time():
    assert [fmpm.timeout(operation, 60) for operation in (
        fmpm.LIST, fmpm.FAILED_LINKS, fmpm.ACTIVATE)] == [10, 10, 60]
    assert fmpm.timeout(fmpm.LIST, 3) == 3


_CANNOT = 'Failed to {} partition. fmReturn: {}\n'


@pytest.mark.parametrize('operation, code, output, failure, says', [
    (fmpm.ACTIVATE, 249, _CANNOT.format('activate', -7), _Failure.IN_USE,
     "ended with 249 and said 'Failed to activate partition. fmReturn: -7' "
     '(FM_ST_IN_USE)'),
    (fmpm.ACTIVATE, 255, 'Invalid Partition ID.\n',
     _Failure.UNKNOWN_PARTITION, 'FM_ST_BADPARAM'),
    (fmpm.LIST, 255, 'Failed to get partition list. fmReturn: -1',
     _Failure.OTHER, 'FM_ST_BADPARAM'),
    (fmpm.DEACTIVATE, 252, _CANNOT.format('deactivate', -4),
     _Failure.NOT_ACTIVE, 'FM_ST_UNINITIALIZED'),
    (fmpm.ACTIVATE, 252, _CANNOT.format('activate', -4), _Failure.NOT_READY,
     'FM_ST_UNINITIALIZED'),
    (fmpm.ACTIVATE, 246, _CANNOT.format('activate', -10),
     _Failure.LINK_ERROR, 'FM_ST_NVLINK_ERROR'),
    (fmpm.ACTIVATE, 251, _CANNOT.format('activate', -5), _Failure.TIMED_OUT,
     'FM_ST_TIMEOUT'),
    (fmpm.LIST, 248, 'Failed to get partition list. fmReturn: -8',
     _Failure.NOT_READY, 'FM_ST_NOT_CONFIGURED'),
    (fmpm.LIST, 253, 'Failed to get partition list. fmReturn: -3',
     _Failure.NOT_SUPPORTED, 'FABRIC_MODE=1'),
    (fmpm.LIST, 247, 'Failed to connect to Fabric Manager instance.\n',
     _Failure.UNREACHABLE, 'start nvidia-fabricmanager'),
    # What fmConnect returns is not documented for each case.
    (fmpm.LIST, 251, 'Failed to connect to Fabric Manager instance.\n',
     _Failure.UNREACHABLE, 'start nvidia-fabricmanager'),
    (fmpm.LIST, 250, 'Failed to connect to Fabric Manager instance.\n',
     _Failure.OTHER, 'of the same version'),
    (fmpm.ACTIVATE, 241, _CANNOT.format('activate', -15), _Failure.OTHER,
     "said 'Failed to activate partition. fmReturn: -15'"),
    (fmpm.ACTIVATE, 1, 'Error: -a option', _Failure.OTHER, 'ended with 1'),
    (fmpm.ACTIVATE, -6, 'what():  stoul', _Failure.OTHER, 'ended with -6'),
    (fmpm.ACTIVATE, 127, 'libnvfm.so.1: cannot open', _Failure.OTHER,
     'libnvfm.so.1'),
    (fmpm.ACTIVATE, None, 'one\ntwo\n', _Failure.TIMED_OUT,
     "did not end in time and said 'two'")])
def test_failure(operation, code, output, failure, says):
    error = fmpm.failure(operation, code, output, 'thing')
    assert error.failure is failure
    assert says in str(error)
    assert str(error).startswith('thing: ')
    assert '\n' not in str(error)


def test_success_is_no_failure():
    assert fmpm.failure(fmpm.ACTIVATE, 0, '', 'thing') is None


def test_partitions():
    text = _listed(_PARTITION, {
        'partitionId': 0, 'isActive': 0, 'numGpus': 2, 'gpuInfo': [
            {**_GPU, 'physicalId': 8},
            {'physicalId': 2, 'pciBusId': '00000000:1B:00.0', 'new': 1}]})
    # The library may print as well.
    found = fmpm.read_partitions(f'a warning\n{text}\nbye', 'thing')
    first, second = found
    assert (first.id, first.is_active, second.id, second.is_active) == (
        3, True, 0, False)
    assert [member.module for member in second.members] == [8, 2]
    assert [str(member.address) for member in second.members] == [
        'None', '0000:1b:00.0']
    assert [member.has_failed_links for member in second.members] == [
        True, False]


@pytest.mark.parametrize('text', [
    '', 'null', '[]', '{}', _listed(_PARTITION)[:-40],
    _listed(_PARTITION, numPartitions=2), _listed(_PARTITION, _PARTITION),
    *(_listed({**_PARTITION, **wrong}) for wrong in (
        {'partitionId': 64}, {'partitionId': '3'}, {'isActive': None},
        {'isActive': True}, {'gpuInfo': {}}, {'gpuInfo': []},
        {'gpuInfo': [], 'numGpus': 0}, {'gpuInfo': [7]},
        {'gpuInfo': [_GPU, _GPU], 'numGpus': 2},
        {'gpuInfo': [{**_GPU, 'physicalId': -1}]},
        {'gpuInfo': [{**_GPU, 'pciBusId': 'x'}]},
        {'gpuInfo': [{**_GPU, 'pciBusId': None}]},
        {'gpuInfo': [{**_GPU, 'maxNumNvLinks': '18'}]})),
    '{"a":' * 100_000 + '}'])
@pytest.mark.parametrize('read', [fmpm.read_partitions,
                                  fmpm.read_failed_links])
def test_output_that_cannot_be_understood(read, text):
    with pytest.raises(manager.FabricError) as caught:
        read(text, 'thing')
    assert caught.value.failure is _Failure.OTHER
    assert 'printed what cannot be understood' in str(caught.value)
    assert '\n' not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_failed_links():
    device = {'uuid': 'GPU-1', 'pciBusId': '00000000:1B:00.0', 'numPorts': 2,
              'portNum': [3, 17]}
    assert fmpm.read_failed_links(json.dumps({
        'version': 1, 'numGpus': 1, 'gpuInfo': [device], 'numSwitches': 1,
        'switchInfo': [{**device, 'pciBusId': ''}]}), 'thing') == (
        manager.FailedLinks(model.PciAddress(0, 0x1b, 0, 0), 'GPU-1',
                            (3, 17)),
        manager.FailedLinks(None, 'GPU-1', (3, 17), True))
