# SPDX-License-Identifier: Apache-2.0
"""Guests of the machine: a small kernel and two initramfs.

One has a program that reports devices. The other one runs a command.
"""

from collections.abc import Mapping
import json
import pathlib
import re
import shutil

from tests.integration import place
from tests.integration.machine import kept
from tests.integration.machine import kernel
from tests.integration.steps import Failure
from tests.integration.steps import Steps
from tests.integration.steps import run

PACKAGES = ('bc', 'bison', 'build-essential', 'cpio', 'flex', 'libelf-dev',
            'libssl-dev', 'linux-source-6.1', 'lz4', 'pciutils', 'xz-utils')

FILES = pathlib.Path(__file__).parent / 'files'
_SOURCE = pathlib.Path('/usr/src/linux-source-6.1.tar.xz')

#: The kernel's command line. tsc=reliable: a check of the TSC takes a second,
#: and there is no other clock to compare it with. highres=off: ticks with high
#: resolution are programmed one by one. pcie_ports=compat: firmware does what
#: the ports need.
COMMAND_LINE = ('console=ttyS0 quiet panic=-1 tsc=reliable mitigations=off '
                'nokaslr no_timer_check highres=off pcie_ports=compat')

#: The command line for `with_lspci`; append the words of the command.
RUN = f'{COMMAND_LINE} rdinit=/bin/sh -- /start'

_LSPCI = pathlib.Path('/usr/bin/lspci')
#: The script of the tenants' guide, which finds devices.
_DEVICES = place.ROOT / 'doc/source/user/accel-devices.sh'
_IDS = pathlib.Path('/usr/share/misc/pci.ids')

_EVENT = re.compile(r'GUEST (\{.*\})\s*$', re.MULTILINE)


def events(console: str) -> list[Mapping[str, object]]:
    """Return the events that files/guest.c printed on a console.

    An incomplete line at the end is ignored.
    """
    said = []
    for line in _EVENT.findall(console):
        try:
            said.append(json.loads(line))
        except ValueError:
            continue
    return said


def linux(steps: Steps) -> pathlib.Path:
    """Build a kernel that boots in a third of the time of Debian's."""
    config = FILES / 'guest.config'
    version = run('dpkg-query', '-W', '-f', '${Version}', 'linux-source-6.1')

    def make(path):
        path.mkdir()
        with steps.step('the source of a small kernel'):
            run('tar', '--strip-components=1', '-xf', _SOURCE, cwd=path)
        with steps.step('a small kernel for guests (some minutes)'):
            run('make', '-s', 'tinyconfig', cwd=path)
            with (path / '.config').open('a') as file:
                file.write(config.read_text())
            run('make', '-s', 'olddefconfig', cwd=path)
            _check(config, path / '.config')
            run('sh', '-c', 'exec make -s -j"$(nproc)" bzImage', cwd=path)
            (path / 'arch/x86/boot/bzImage').rename(path / 'vmlinuz')
        for each in path.iterdir():
            if each.name != 'vmlinuz':
                run('rm', '-rf', each)

    return kept.kept('guest-kernel', [version, config], make) / 'vmlinuz'


def _check(wanted, got):
    """Check that olddefconfig has not silently dropped an option."""
    lines = set(got.read_text().splitlines())
    missing = [line for line in wanted.read_text().splitlines()
               if line.startswith('CONFIG_') and line not in lines]
    if missing:
        raise Failure(f'{wanted.name}: this kernel does not accept '
                             + ', '.join(missing))


def initramfs(steps: Steps) -> pathlib.Path:
    """Build the initramfs whose only program is guest.c."""
    source = FILES / 'guest.c'

    def make(path):
        with steps.step('what guests run'):
            tree = path.with_suffix('.tree')
            tree.mkdir(exist_ok=True)
            run('gcc', '-O2', '-static', '-s', '-Wall', '-Werror', '-o',
                tree / 'init', source)
            kernel.archive(tree, path)
            run('rm', '-r', tree)

    return kept.kept('guest-initramfs', [source], make)


def with_lspci(steps: Steps) -> pathlib.Path:
    """Build the initramfs that runs one command.

    It has a shell, lspci, and ``/accel-devices.sh``.
    """
    scripts, ids = (FILES / 'start', _DEVICES), _IDS.resolve()
    said = run('ldd', _LSPCI)
    libraries = [pathlib.Path(each) for each in
                 re.findall(r'(/\S+) \(0x', said)]

    def make(path):
        with steps.step('a guest with lspci'):
            tree = path.with_suffix('.tree')
            for each in ('bin', 'dev', 'proc', 'sys'):
                (tree / each).mkdir(parents=True, exist_ok=True)
            shutil.copy('/bin/busybox', tree / 'bin')
            (tree / 'bin/sh').symlink_to('busybox')
            for script in scripts:
                shutil.copy(script, tree)
            for file in (*libraries, _IDS):
                into = tree / file.parent.relative_to('/')
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, into)
            shutil.copy(_LSPCI, tree / 'bin')
            kernel.archive(tree, path)
            shutil.rmtree(tree)

    return kept.kept('guest-with-lspci', [*scripts, ids, _LSPCI, *libraries],
                     make)
