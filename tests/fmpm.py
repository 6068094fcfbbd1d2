# SPDX-License-Identifier: Apache-2.0
"""A stand-in for NVIDIA's Fabric Manager and its command fmpm.

:class:`FabricManager` writes a command ``fmpm`` and a command ``nvidia-smi``
to a folder. Both read their state from a file there, so that each process of
a test sees the same manager. It was compared with no hardware. The sources
are:

- fmpm.cpp 1.0.1 (github.com/NVIDIA/Fabric-Manager-Client): arguments, texts,
  what goes to standard output, exit codes, and that it ignores
  ``--unix-domain-socket``;
- nv_fm_types.h and nv_fm_agent.h of nvidia-fabricmanager-dev: the numbers that
  calls return, the limits, and that failed links are always none on H100;
- the Fabric Manager User Guide: the partitions of an HGX baseboard, empty
  uuids and addresses on H100, and what a restart loses.

Not published, so assumed: a partition with a GPU that is being reset cannot be
activated (GENERIC_ERROR); after a restart with ``FABRIC_MODE_RESTART=1``, each
call returns NOT_CONFIGURED until the active partitions are set, which it then
believes: no switch is changed; what a call that times out has done is not
certain.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import random
import re
import resource
import signal
import sys
import time

SUCCESS, BADPARAM, GENERIC_ERROR, NOT_SUPPORTED = 0, -1, -2, -3
UNINITIALIZED, TIMEOUT, VERSION_MISMATCH, IN_USE = -4, -5, -6, -7
NOT_CONFIGURED, CONNECTION_NOT_VALID, NVLINK_ERROR = -8, -9, -10

#: FM_MAX_FABRIC_PARTITIONS.
MAX_PARTITIONS = 64

#: The partitions of a baseboard with eight GPUs: modules by partition.
HGX = {0: (1, 2, 3, 4, 5, 6, 7, 8), 1: (1, 2, 3, 4), 2: (5, 6, 7, 8),
       3: (1, 3), 4: (2, 4), 5: (5, 7), 6: (6, 8),
       **{number: (number - 6,) for number in range(7, 15)}}

#: What a seed of faults chooses from.
FAULTS = (GENERIC_ERROR, TIMEOUT, CONNECTION_NOT_VALID, NVLINK_ERROR)

_LINKS = 18

_DEFAULT = {
    'partitions': HGX,      # modules by partition
    'active': [],           # partitions, as it believes
    'linked': [],           # partitions, as the switches are
    'addresses': {},        # PCI addresses by module, for nvidia-smi
    'sysfs': None,          # nvidia-smi shows cards with the driver nvidia
    'running': True,
    'mode': 1,              # FABRIC_MODE
    'restart_mode': False,  # FABRIC_MODE_RESTART
    'waits': False,         # for the active partitions
    'host': '127.0.0.1',
    'skew': '',             # "connect", "list": of another version
    'tells_addresses': False,   # as on A100 and older
    'links': {},            # usable links by module, if fewer than all
    'bad_links': [],        # modules whose links fail during activation
    'failed_gpus': {},      # failed ports by uuid; older than H100
    'failed_switches': {},
    'gone': [],             # modules that FM did not find when it started
    'in_reset': [],         # modules
    'hangs': '',            # "before", "after": doing what was asked for
    'delay': 0,             # seconds that each call takes
    'seed': None, 'rate': 0.0,  # of random faults of changes
    'calls': 0,
}

_HELP = '''\
-l : List partitions
-a <Partition ID> : Activate partition
-d <Partition ID> : Deactivate partition
--hostname : hostname or IP address (TCP socket) of Fabric Manager.
--get-nvlink-failed-devices : Query all NVLink failed devices
--list-unsupported-partitions : Query all unsupported fabric partitions
--set-activated-list <Partition IDs> : Set a list of currently activated \
fabric partitions.
-v : Show version'''


class FabricManager:
    """A Fabric Manager, and the commands that ask it, in a folder.

    :param folder: exists
    :param state: keys of ``_DEFAULT`` and their values
    :ivar fmpm: path of the command, as is ``nvidia_smi``
    """

    def __init__(self, folder, **state):
        self._folder = pathlib.Path(folder)
        self.set(**{**_DEFAULT, **state})
        self.fmpm = self._write('fmpm')
        self.nvidia_smi = self._write('nvidia-smi')

    def option(self, **keys):
        """Return a value of ``[nova_accel] fabric_manager``."""
        return json.dumps({'command': [self.fmpm], 'modules_command':
                           [self.nvidia_smi, '-q', '-x'], **keys})

    def set(self, **state):
        unknown = state.keys() - _DEFAULT.keys()
        if unknown:
            raise ValueError(f'no such state: {unknown}')
        if 'active' in state:
            state = {'linked': state['active'], **state}
        with _locked(self._folder) as now:
            now.update(json.loads(json.dumps(state)))

    def get(self, key):
        with _locked(self._folder) as now:
            return now[key]

    @property
    def active(self):
        """The partitions that are active, and that it believes to be."""
        return sorted({*self.get('active')} & {*self.get('linked')})

    def stop(self):
        self.set(running=False)

    def start(self):
        """Start it, without what it knew; or, in restart mode, waiting."""
        with _locked(self._folder) as now:
            now['running'] = True
            if now['restart_mode']:
                now['waits'] = True
            else:
                now['active'] = []

    def restart(self):
        self.stop()
        self.start()

    def log(self):
        """Return the arguments of each call of fmpm, in order."""
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in (
                self._folder / 'calls').read_text().splitlines()]
        return []

    def _write(self, name):
        path = self._folder / name
        path.write_text(
            f'#!{sys.executable} -IS\n'
            'import runpy\n'
            f'runpy.run_path({__file__!r}, {{"NAME": {name!r}, "FOLDER": '
            f'{str(self._folder)!r}}}, "__main__")\n')
        path.chmod(0o755)
        return str(path)


class _Failed(Exception):
    """A call of the library that did not return FM_ST_SUCCESS."""


@contextlib.contextmanager
def _locked(folder):
    """Lock the state, and write it back."""
    with open(pathlib.Path(folder, 'state'), 'a+') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        state = json.loads(file.read() or '{}')
        try:
            yield state
        finally:
            text = json.dumps(state)
            file.seek(0)
            file.truncate()
            file.write(text)


def _smi(state):
    print('<?xml version="1.0" ?>\n<nvidia_smi_log>')
    for module, address in sorted(state['addresses'].items()):
        driver = state['sysfs'] and os.path.basename(os.path.realpath(
            f'{state["sysfs"]}/bus/pci/devices/{address}/driver'))
        if driver in (None, 'nvidia'):
            print(f'\t<gpu id="0000{address.upper()}">\n'
                  f'\t\t<gpu_module_id>{module}</gpu_module_id>\n\t</gpu>')
    print('</nvidia_smi_log>')
    return 0


def _number(text):
    """Return what std::stoul does, as an unsigned int."""
    match = re.match(r'\s*[+-]?\d+', text)
    if not match:
        print("terminate called after throwing an instance of "
              "'std::invalid_argument'\n  what():  stoul", file=sys.stderr)
        sys.stderr.flush()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGABRT)
    return int(match[0]) % 2 ** 32


#: The options that take an argument, and what fmpm calls it.
_TAKES = {
    '-a': 'partition ID', '-d': 'partition ID',
    '--set-activated-list': 'list of partition IDs',
    '--hostname': 'user specified IP or hostname',
    '--unix-domain-socket': 'user specified socket value'}


def _fmpm(folder, words):
    """Do what main() of fmpm.cpp does."""
    if words in ([], ['-h']):
        print(_HELP)
        return 0
    operation, ids, host = '', [], '127.0.0.1'
    words = iter(words)
    for word in words:
        if word == '-v':
            print('1.0.1')
            return 0
        if word not in _CALLS and word not in _TAKES:
            print('Invalid argument.\n', file=sys.stderr)
            return BADPARAM
        value = next(words, None) if word in _TAKES else ''
        if value is None:
            print(f'Error: {word} option requires {_TAKES[word]}.',
                  file=sys.stderr)
            return BADPARAM if word == '-d' else 1
        if word in _CALLS:
            operation, ids = word, _ids(word, value)
        if ids is None:
            return BADPARAM
        # Version 1.0.1 overwrites the socket with the host.
        host = value if word == '--hostname' else host
    return _connected(folder, operation, ids, host)


def _ids(word, value):
    """Return the partitions of an option, None if one is invalid."""
    if word in ('-a', '-d'):
        found = _number(value)
        if word == '-a' and found >= MAX_PARTITIONS:
            print('Invalid Partition ID.')
            return None
        return [found]
    found = []
    for one in filter(None, value.split(',')):
        match = re.match(r'\s*[+-]?\d+', one)
        found.append(int(match[0]) if match else 0)
        if not 0 <= found[-1] < MAX_PARTITIONS:
            print(f'Invalid partition Id {found[-1] % 2 ** 32} was given.')
            return None
    return found


_FAILED = {
    '-l': 'get partition list', '-a': 'activate partition',
    '-d': 'deactivate partition',
    '--set-activated-list': 'set activated partitions',
    '--get-nvlink-failed-devices': 'NVLink failed devices',
    '--list-unsupported-partitions': 'list unsupported partitions'}


def _connected(folder, operation, ids, host):
    with _locked(folder) as state:
        state['calls'] += 1
        fault = _fault(state, operation)
        status, hangs, delay = SUCCESS, state['hangs'], state['delay']
        text = None
        if (not state['running'] or host != state['host']
                or fault == CONNECTION_NOT_VALID):
            status = CONNECTION_NOT_VALID
        elif state['skew'] == 'connect':
            status = VERSION_MISMATCH
        if status:
            print('Failed to connect to Fabric Manager instance.')
            return status
        # Whether a call that timed out was done is by chance.
        undone = fault in (GENERIC_ERROR, NVLINK_ERROR) or (
            fault == TIMEOUT and _chance(state).random() < 0.5)
        if operation and not undone and hangs != 'before':
            try:
                text = _CALLS[operation](state, ids)
            except _Failed as error:
                status = error.args[0]
    time.sleep(3600 if hangs else delay)
    status = status or fault
    if status:
        print(f'Failed to {_FAILED[operation]}. fmReturn: {status}')
    elif text is not None:
        print(json.dumps(text, indent=3, separators=(',', ' : '),
                         sort_keys=True))
    return status


def _chance(state):
    return random.Random(f'{state["seed"]}:{state["calls"]}')


def _fault(state, operation):
    if operation not in ('-a', '-d') or state['seed'] is None:
        return SUCCESS
    chance = _chance(state)
    return chance.choice(FAULTS) if chance.random() < state['rate'] else (
        SUCCESS)


def _ready(state):
    if state['mode'] != 1:
        raise _Failed(NOT_SUPPORTED)
    if state['waits']:
        raise _Failed(NOT_CONFIGURED)
    return {int(number): modules for number, modules
            in state['partitions'].items()
            if not set(modules) & set(state['gone'])}


def _list(state, _ids):
    partitions = _ready(state)
    if state['skew'] == 'list':
        raise _Failed(VERSION_MISMATCH)
    return {
        'version': 1 << 24 | 0x21c0c, 'numPartitions': len(partitions),
        'maxNumPartitions': len(state['partitions']),
        'partitionInfo': [{
            'partitionId': number, 'isActive': int(number in state['active']),
            'numGpus': len(modules),
            'gpuInfo': [_gpu(state, module) for module in modules]}
            for number, modules in partitions.items()]}


def _gpu(state, module):
    address = state['addresses'].get(str(module), '')
    tells = state['tells_addresses']
    return {
        'physicalId': module,
        'uuid': f'GPU-{module:08x}-0000-0000-0000-000000000000' if tells
                else '',
        'pciBusId': f'0000{address.upper()}' if tells and address else '',
        'numNvLinksAvailable': state['links'].get(str(module), _LINKS),
        'maxNumNvLinks': _LINKS, 'nvlinkLineRateMBps': 26562}


def _activate(state, ids):
    [number], partitions = ids, _ready(state)
    if number not in partitions:
        raise _Failed(BADPARAM)
    wanted = set(partitions[number])
    if any(wanted & set(state['partitions'][str(other)])
           for other in state['active']):
        raise _Failed(IN_USE)
    if wanted & set(state['in_reset']):
        raise _Failed(GENERIC_ERROR)
    if len(wanted) > 1 and wanted & set(state['bad_links']):
        raise _Failed(NVLINK_ERROR)
    state['active'].append(number)
    state['linked'] = [other for other in state['linked'] if not wanted & set(
        state['partitions'][str(other)])] + [number]


def _deactivate(state, ids):
    [number] = ids
    if number not in _ready(state):
        raise _Failed(BADPARAM)
    if number not in state['active']:
        raise _Failed(UNINITIALIZED)
    state['active'].remove(number)
    if number in state['linked']:
        state['linked'].remove(number)


def _restore(state, ids):
    if not state['waits']:
        raise _Failed(NOT_SUPPORTED)
    partitions = state['partitions']
    modules = [module for number in ids
               for module in partitions.get(str(number), [None])]
    if None in modules or len(set(modules)) < len(modules):
        raise _Failed(BADPARAM)
    state['active'], state['waits'] = list(dict.fromkeys(ids)), False


def _failed(state, _ids):
    _ready(state)
    if state['restart_mode']:
        raise _Failed(NOT_SUPPORTED)
    gpus, switches = state['failed_gpus'], state['failed_switches']
    return {'version': 1 << 24 | 0x5f44, 'numGpus': len(gpus),
            'numSwitches': len(switches), **{key: [{
                'uuid': uuid, 'pciBusId': '', 'numPorts': len(ports),
                'portNum': ports} for uuid, ports in found.items()]
                for key, found in (('gpuInfo', gpus),
                                   ('switchInfo', switches))}}


def _unsupported(state, _ids):
    _ready(state)
    return {'version': 1 << 24 | 0x1208, 'numPartitions': 0,
            'partitionInfo': []}


_CALLS = {'-l': _list, '-a': _activate, '-d': _deactivate,
          '--set-activated-list': _restore,
          '--get-nvlink-failed-devices': _failed,
          '--list-unsupported-partitions': _unsupported}


def main(name, folder):
    if name == 'nvidia-smi':
        with _locked(folder) as state:
            return _smi(state)
    with open(pathlib.Path(folder, 'calls'), 'a') as log:
        log.write(json.dumps(sys.argv[1:]) + '\n')
    return _fmpm(folder, sys.argv[1:])


if __name__ == '__main__':
    sys.exit(main(NAME, FOLDER) & 0xff)  # noqa: F821 # set by the command
