# SPDX-License-Identifier: Apache-2.0
"""QEMU with an accelerator, built from Debian's source package.

Of Debian's next release: the QEMU of Debian 12 has no network card with
virtual functions, and does not migrate what VFIO gives it.
"""

import collections
from collections.abc import Iterator
import os
import pathlib
import re
import shutil
import subprocess
import sys

from tests.integration.machine import kept
from tests.integration.steps import Failure
from tests.integration.steps import Steps
from tests.integration.steps import run

#: What is built. Debian puts only corrections into a release: 10.0.N.
SERIES = '10.0'
_SUITE = 'trixie'

PACKAGES = ('bison', 'build-essential', 'debian-archive-keyring', 'flex',
            'libattr1-dev', 'libcap-ng-dev', 'libfdt-dev', 'libglib2.0-dev',
            'libpixman-1-dev', 'libslirp-dev', 'ninja-build', 'pkg-config',
            'python3-venv', 'xz-utils', 'zlib1g-dev')

#: What its configure looks for, in the versions that it names.
_REQUIREMENTS = ('meson==1.5.0', 'pycotap==1.3.1')
_OPTIONS = (
    '--target-list=x86_64-softmmu', '--without-default-features',
    '--without-default-devices', '--with-devices-x86_64=integration',
    '--enable-system', '--enable-tcg', '--enable-slirp', '--enable-virtfs',
    '--enable-attr', '--enable-cap-ng', '--disable-docs',
    '--disable-install-blobs', '--disable-debug-info')

_OURS = pathlib.Path(__file__).parent / 'qemu'
_DEVICES = _OURS / 'devices.mak'
_ACCELERATOR = _OURS / 'accelerator.c'
_PROGRAM = 'qemu-system-x86_64'

#: What is otherwise than in its source: file, what is there, and what instead.
_EDITS = (
    # A name of ours.
    ('hw/misc/meson.build', '\\Z',
     "system_ss.add(when: 'CONFIG_PCI', if_true: files('accelerator.c'))\n"),
    # Debian's archive has no such firmware to unpack.
    ('meson.build', r'unpack_edk2_blobs = bzip2\.found\(\)',
     'unpack_edk2_blobs = false'),
    # An interrupt that KVM in the machine gives its guest stays noted as what
    # is to be delivered next. If the processor's thread has something else to
    # do before the guest ends its turn, it is delivered again: to a guest that
    # is handling it, and waits for its own lock for ever.
    ('target/i386/tcg/system/svm_helper.c',
     r'do_interrupt_x86_hardirq\(env, vector, 1\);',
     'do_interrupt_x86_hardirq(env, vector, 1);\n'
     '            cs->exception_index = -1;'),
    # PCIe switches keep the devices below them apart, as those of servers do:
    # without access control (ACS) they are one group of the IOMMU.
    ('hw/pci-bridge/xio3130_downstream.c', r'\n    return;\n\nerr:',
     '\n    pcie_acs_init(d, XIO3130_AER_OFFSET + PCI_ERR_SIZEOF);\n'
     '    return;\n\nerr:'),
    ('hw/pci-bridge/xio3130_downstream.c', r'pcie_cap_arifwd_reset\(d\);',
     'pcie_cap_arifwd_reset(d);\n    pcie_acs_reset(d);'))


def build(steps: Steps) -> pathlib.Path:
    """QEMU's program, built unless it is kept; only what changed is compiled.

    Firmware is where Debian's packages seabios and qemu-system-data put it.

    :raises Failure: if there is no such source, or with what the compiler says
    """
    inputs = [SERIES, *_REQUIREMENTS, *_OPTIONS, _DEVICES, repr(_EDITS)]

    def make(path):
        tree = kept.kept('qemu-source', inputs,
                         lambda half: _source(half, steps))
        shutil.copy(_ACCELERATOR, tree / 'hw/misc')
        _configure(tree, steps)
        with steps.step(f'compile QEMU {SERIES}'):
            for progress in _compile(tree / 'build'):
                steps.say(f'QEMU: {progress}')
        path.mkdir()
        run('strip', '-o', path / _PROGRAM, tree / 'build' / _PROGRAM)

    return kept.kept('qemu', [*inputs, _ACCELERATOR], make) / _PROGRAM


def _source(path, steps):
    """Upstream's source as Debian has it, with our files' names in it."""
    with steps.step(f'source of QEMU {SERIES}'):
        path.mkdir()
        archive = _download(path)
        tree = path / 'tree'
        tree.mkdir()
        # Two thirds of it are firmware, which Debian has packages of.
        run('tar', '-xf', archive, '-C', tree, '--strip-components=1',
            '--exclude=*/roms')
        for file in path.iterdir():
            if file != tree:
                _remove(file)
    # What is in the archive is one directory; what is kept is that.
    for file in tree.iterdir():
        file.rename(path / file.name)
    tree.rmdir()
    shutil.copy(_DEVICES,
                path / 'configs/devices/x86_64-softmmu/integration.mak')
    for name, pattern, replacement in _EDITS:
        _edit(path / name, pattern, replacement)


def _edit(file, pattern, replacement):
    text, count = re.subn(pattern, lambda _: replacement, file.read_text())
    if count != 1:
        raise Failure(f'{file}: {pattern} is there {count} times: this is '
                      f'not QEMU {SERIES}')
    file.write_text(text)


def _download(path):
    """The archive of upstream's source, from where this machine's apt goes.

    apt checks signature and hash. It has a list of its own here: the
    machine's is of another release, and mostly has no sources.
    """
    (path / 'parts').mkdir()
    (path / 'lists/partial').mkdir(parents=True)
    (path / 'parts/source.sources').write_text(
        f'Types: deb-src\nURIs: {_archive()}\nSuites: {_SUITE}\n'
        'Components: main\n'
        'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n')
    options = [word for pair in (
        'APT::Sandbox::User=root', 'Dir::Etc::sourcelist=/dev/null',
        f'Dir::Etc::sourceparts={path / "parts"}',
        f'Dir::State::lists={path / "lists"}',
        f'Dir::Cache={path}') for word in ('-o', pair)]
    run('apt-get', *options, '-qq', 'update')
    said = run('apt-cache', *options, 'showsrc', '--only-source', 'qemu')
    versions = re.findall(r'^Version: (\S+)', said, re.MULTILINE)
    wanted = [version for version in versions
              if re.match(rf'\d+:{re.escape(SERIES)}\.', version)]
    if not wanted:
        raise Failure(f'QEMU {SERIES}: {_SUITE} has {versions}; '
                      f'see SERIES in {__file__}')
    run('apt-get', *options, '-qq', 'source', '--download-only',
        f'qemu={wanted[0]}', cwd=path)
    [archive] = path.glob('qemu_*.orig.tar.xz')
    return archive


def _archive():
    """Where Debian's main archive is, for this machine's apt."""
    said = run('apt-get', 'indextargets', '--format', '$(REPO_URI)',
               'Origin: Debian', 'Component: main', 'Identifier: Packages')
    for line in said.splitlines():
        if 'security' not in line:
            return line
    raise Failure('apt has no archive of Debian: QEMU is built from '
                  "Debian's source")


def _configure(tree, steps):
    build_directory = tree / 'build'
    if (build_directory / 'build.ninja').exists():
        return
    with steps.step(f'configure QEMU {SERIES}'):
        _remove(build_directory)
        build_directory.mkdir()
        python = tree / 'venv/bin/python3'
        run(sys.executable, '-m', 'venv', '--clear', tree / 'venv')
        run(python, '-m', 'pip', 'install', '-q', *_REQUIREMENTS)
        run('nice', '-n', '10', tree / 'configure', f'--python={python}',
            *_OPTIONS, cwd=build_directory)


def _compile(directory) -> Iterator[str]:
    """How far it is, ten times.

    :raises Failure: with the end of what the compiler says
    """
    said = collections.deque(maxlen=40)
    shown = 0
    with subprocess.Popen(
            ['nice', '-n', '10', 'ninja', '-C', directory, '-j',
             str(os.cpu_count()), _PROGRAM], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout:
            said.append(line)
            found = re.match(r'\[(\d+)/(\d+)\]', line)
            if found:
                done, total = map(int, found.groups())
                if done * 10 // total > shown:
                    shown = done * 10 // total
                    yield f'{done} of {total}'
    if process.returncode:
        raise Failure(f'QEMU is not compiled: {"".join(said)}')


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
