# SPDX-License-Identifier: Apache-2.0
"""Guests in the machine: a small kernel, and what runs on it.

That is one program that speaks, or one command with its output.
"""

from collections.abc import Mapping
import json
import pathlib
import re
import shutil

from tests.integration.machine import kept
from tests.integration.machine import kernel
from tests.integration.steps import Failure
from tests.integration.steps import Steps
from tests.integration.steps import run

PACKAGES = ('bc', 'bison', 'build-essential', 'cpio', 'flex', 'libelf-dev',
            'libssl-dev', 'linux-source-6.1', 'lz4', 'pciutils', 'xz-utils')

FILES = pathlib.Path(__file__).parent / 'files'
_SOURCE = pathlib.Path('/usr/src/linux-source-6.1.tar.xz')

#: What its kernel is to be told. There is no other clock to check that of a
#: processor against, and doing so takes a second. Ticks with high resolution
#: are programmed one by one; of its ports, firmware does what is needed.
COMMAND_LINE = ('console=ttyS0 quiet panic=-1 tsc=reliable mitigations=off '
                'nokaslr no_timer_check highres=off pcie_ports=compat')

#: And more, for `with_lspci`; the words of the command follow.
RUN = f'{COMMAND_LINE} rdinit=/bin/sh -- /start'

_LSPCI = pathlib.Path('/usr/bin/lspci')
_IDS = pathlib.Path('/usr/share/misc/pci.ids')

_EVENT = re.compile(r'GUEST (\{.*\})\s*$', re.MULTILINE)


def events(console: str) -> list[Mapping[str, object]]:
    """What guests said on a console, in order; files/guest.c says it.

    Half a line, at the end of what there is so far, is left out.
    """
    said = []
    for line in _EVENT.findall(console):
        try:
            said.append(json.loads(line))
        except ValueError:
            continue
    return said


def linux(steps: Steps) -> pathlib.Path:
    """A kernel that is there in a third of the time of Debian's own."""
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
    """What olddefconfig does not know or allow, it drops without a word."""
    lines = set(got.read_text().splitlines())
    missing = [line for line in wanted.read_text().splitlines()
               if line.startswith('CONFIG_') and line not in lines]
    if missing:
        raise Failure(f'{wanted.name}: this kernel does not take '
                             + ', '.join(missing))


def initramfs(steps: Steps) -> pathlib.Path:
    """The program that is all of the guest's userland."""
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
    """A shell and lspci, to run one command with."""
    script, ids = FILES / 'start', _IDS.resolve()
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
            shutil.copy(script, tree / 'start')
            for file in (*libraries, _IDS):
                into = tree / file.parent.relative_to('/')
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, into)
            shutil.copy(_LSPCI, tree / 'bin')
            kernel.archive(tree, path)
            shutil.rmtree(tree)

    return kept.kept('guest-with-lspci', [script, ids, _LSPCI, *libraries],
                     make)
