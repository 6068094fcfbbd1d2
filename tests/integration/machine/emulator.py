# SPDX-License-Identifier: Apache-2.0
"""QEMU with the device "accelerator", built from Debian's source package.

The source is that of Debian 13. The QEMU of Debian 12 has no network card with
VFs and does not migrate VFIO devices.
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

#: The version to build. A release of Debian only gets updates to 10.0.N.
SERIES = '10.0'
_SUITE = 'trixie'

PACKAGES = ('bison', 'build-essential', 'debian-archive-keyring', 'flex',
            'libattr1-dev', 'libcap-ng-dev', 'libfdt-dev', 'libglib2.0-dev',
            'libpixman-1-dev', 'libslirp-dev', 'ninja-build', 'pkg-config',
            'python3-venv', 'xz-utils', 'zlib1g-dev')

#: Python packages and versions that QEMU's configure needs.
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

#: Changes to the source: file, pattern, and replacement.
_EDITS = (
    # Add accelerator.c to the build.
    ('hw/misc/meson.build', '\\Z',
     "system_ss.add(when: 'CONFIG_PCI', if_true: files('accelerator.c'))\n"),
    # Debian's source archive lacks this firmware.
    ('meson.build', r'unpack_edk2_blobs = bzip2\.found\(\)',
     'unpack_edk2_blobs = false'),
    # When KVM in the machine injects an interrupt into its guest, QEMU leaves
    # exception_index set. If the thread of the processor is interrupted before
    # the guest exits, QEMU delivers the interrupt again. A guest that is
    # already handling it then waits for its own lock for ever.
    ('target/i386/tcg/system/svm_helper.c',
     r'do_interrupt_x86_hardirq\(env, vector, 1\);',
     'do_interrupt_x86_hardirq(env, vector, 1);\n'
     '            cs->exception_index = -1;'),
    # Add access control services (ACS) to PCIe switches, which real ones have.
    # Without ACS, all devices below a switch share an IOMMU group.
    ('hw/pci-bridge/xio3130_downstream.c', r'\n    return;\n\nerr:',
     '\n    pcie_acs_init(d, XIO3130_AER_OFFSET + PCI_ERR_SIZEOF);\n'
     '    return;\n\nerr:'),
    ('hw/pci-bridge/xio3130_downstream.c', r'pcie_cap_arifwd_reset\(d\);',
     'pcie_cap_arifwd_reset(d);\n    pcie_acs_reset(d);'))


def build(steps: Steps) -> pathlib.Path:
    """Build QEMU unless it is kept, and return the program.

    Only changed files are compiled. The firmware comes from Debian's packages
    seabios and qemu-system-data.

    :raises Failure: if the source is missing, or with the compiler's output
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
    """Unpack and change upstream's source from Debian's archive."""
    with steps.step(f'source of QEMU {SERIES}'):
        path.mkdir()
        archive = _download(path)
        tree = path / 'tree'
        tree.mkdir()
        # Two thirds of the source are firmware, which Debian packages.
        run('tar', '-xf', archive, '-C', tree, '--strip-components=1',
            '--exclude=*/roms')
        for file in path.iterdir():
            if file != tree:
                _remove(file)
    # Keep the files without their top directory.
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
        raise Failure(f'{file}: {pattern} matches {count} times, not once: '
                      f'this is not QEMU {SERIES}')
    file.write_text(text)


def _download(path):
    """Download upstream's source from the mirror that apt uses.

    apt checks signature and hash. It uses its own package list here: the
    system's list is of another release and usually has no source packages.
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
    """Return the URI of Debian's main archive in apt's configuration."""
    said = run('apt-get', 'indextargets', '--format', '$(REPO_URI)',
               'Origin: Debian', 'Component: main', 'Identifier: Packages')
    for line in said.splitlines():
        if 'security' not in line:
            return line
    raise Failure('apt has no archive of Debian, but QEMU is built from '
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
    """Compile QEMU and yield its progress ten times.

    :raises Failure: with the end of the compiler's output
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
