# SPDX-License-Identifier: Apache-2.0
"""The machine's disk with Debian, libvirt, Nova and nova-accel."""

from collections.abc import Sequence
import pathlib
import shutil
import sys
import tempfile
import zipfile

from tests.integration import place
from tests.integration.machine import kept
from tests.integration.machine import kernel
from tests.integration.steps import Failure
from tests.integration.steps import Steps
from tests.integration.steps import run

PACKAGES = ('e2fsprogs', 'gcc', 'libc6-dev', 'libvirt-dev', 'mmdebstrap',
            'pkg-config', 'python3-dev', 'python3-venv', 'busybox-static',
            'openssh-client', 'qemu-utils')

FILES = pathlib.Path(__file__).parent / 'files'

#: Debian's release in the machine. Its Python must be that of `python3` here.
SUITE = 'bookworm'
#: Packages of the machine.
_INSIDE = ('genisoimage', 'iproute2', 'kmod', 'libvirt-clients',
           'libvirt-daemon-driver-qemu', 'libvirt-daemon-system', 'nftables',
           'nvme-cli', 'openssh-server', 'pciutils', 'procps', 'python3',
           'qemu-system-x86', 'qemu-utils', 'udev')
_NOT = ('man', 'locale', 'doc')

#: Kernel modules on the disk. udev loads those that devices need.
_MODULES = ('9p', '9pnet_virtio', 'bridge', 'e1000e', 'ext4', 'igb', 'igbvf',
            'kvm-amd', 'loop', 'macvtap', 'mdev', 'nft_chain_nat', 'nft_ct',
            'nft_masq', 'nft_nat', 'nvme', 'pci-pf-stub', 'tun', 'veth',
            'vfio', 'vfio-pci', 'vfio_iommu_type1', 'virtio_balloon',
            'virtio_blk', 'virtio_net', 'virtio_pci', 'virtio_rng')
_EARLY = ('virtio_pci', 'virtio_blk', 'ext4', 'crc32c_intel')

#: Nova's environment in the machine. Scripts contain the interpreter's path,
#: so Nova must be installed under this path.
NOVA = pathlib.PurePosixPath('/srv/nova')

_SIZE = '6G'


def initramfs(steps: Steps, linux: pathlib.Path) -> pathlib.Path:
    """Build the initramfs that mounts the disk."""
    init = FILES / 'early-init'

    def make(path):
        with steps.step("the machine's initramfs"):
            tree = path.with_suffix('.tree')
            (tree / 'bin').mkdir(parents=True, exist_ok=True)
            (tree / 'modules').mkdir(exist_ok=True)
            shutil.copy('/bin/busybox', tree / 'bin')
            shutil.copy(init, tree / 'init')
            (tree / 'init').chmod(0o755)
            files = kernel.modules(linux, _EARLY)
            for file in files:
                shutil.copy(file, tree / 'modules')
            (tree / 'modules' / 'order').write_text(
                ''.join(f'{file.name}\n' for file in files))
            kernel.archive(tree, path)
            shutil.rmtree(tree)

    return kept.kept('initramfs', [init, linux.name], make)


def disk(steps: Steps, linux: pathlib.Path, modules: Sequence[pathlib.Path],
         wheel: pathlib.Path, key: pathlib.Path) -> pathlib.Path:
    """Build the disk image, which machines must not write to.

    :param linux: the unpacked kernel package
    :param modules: files of additional modules
    :param wheel: nova-accel's wheel
    :param key: root's private key; for ssh from outside and between machines
    """
    system = _system(steps)
    nova = _nova(steps)
    inputs = [system.name, linux.name, nova.name, _contents(wheel), key,
              FILES / 'init', pathlib.Path(__file__), *modules]

    def make(path):
        with (steps.step("the machine's disk"),
              tempfile.TemporaryDirectory(dir=kept.CACHE) as directory):
            tree = pathlib.Path(directory) / 'root'
            tree.mkdir()
            # The kernel makes devices, and mknod may not be permitted here.
            run('tar', '--exclude=./dev/*', '-xf', system, cwd=tree)
            _add_modules(tree, linux, modules)
            _configure(tree, key)
            _add_nova(tree, nova, wheel)
            run('mke2fs', '-q', '-t', 'ext4', '-O', '^has_journal', '-m', '0',
                '-d', tree, path, _SIZE)

    return kept.kept('disk', inputs, make)


def _contents(wheel):
    """Return a text of a wheel's contents, without version and times."""
    version = '-'.join(wheel.name.split('-')[:2])
    with zipfile.ZipFile(wheel) as archive:
        return repr(sorted((each.filename.replace(version, ''), each.CRC)
                           for each in archive.infolist()
                           if not each.filename.endswith(
                               ('/METADATA', '/RECORD'))))


def _system(steps):
    """Build an archive of a Debian system with the packages."""
    sources = _sources()

    def make(path):
        with steps.step("the machine's packages from the archive"):
            run('mmdebstrap', '--mode=root', '--variant=minbase',
                '--format=tar', '--quiet',
                '--aptopt=Acquire::Languages "none"',
                *(f'--dpkgopt=path-exclude=/usr/share/{each}/*'
                  for each in _NOT),
                f'--include={",".join(_INSIDE)}',
                SUITE, path, sources)

    return kept.kept('system', [SUITE, *_INSIDE, *_NOT], make)


def _sources():
    """Return the file with apt's sources of Debian."""
    for name in ('sources.list.d/debian.sources', 'sources.list'):
        path = pathlib.Path('/etc/apt') / name
        if path.exists():
            return path
    raise Failure('neither /etc/apt/sources.list.d/debian.sources nor '
                  '/etc/apt/sources.list exists, so the mirror of Debian is '
                  'not known')


def _nova(steps):
    """Build a virtual environment with Nova for Debian's Python."""
    wanted = ['nova', 'libvirt-python']

    def make(path):
        path.mkdir()
        with steps.step("the machine's Nova from the package index"):
            _as_in_machine(path, '/usr/bin/python3', '-m', 'venv', NOVA)
            _as_in_machine(
                path, sys.executable, '-c', 'import sys\n'
                'from tests.integration import packages\n'
                'packages.uv(*sys.argv[1:])', NOVA / 'bin/python', *wanted)

    return kept.kept('nova', [place.CONSTRAINTS, *wanted], make)


def _as_in_machine(directory, *command):
    """Run a command that sees the directory at its path in the machine."""
    run('unshare', '--mount', 'sh', '-ec', f'''
        mount -t tmpfs tmpfs {NOVA.parent}
        mkdir {NOVA}
        mount --bind "$1" {NOVA}
        shift
        exec "$@"''', 'sh', directory, *command, cwd=place.ROOT)


def _add_modules(tree, linux, modules):
    there = pathlib.Path('lib/modules') / kernel.release()
    source, target = linux / there, tree / there
    target.mkdir(parents=True)
    for file in source.glob('modules.*'):
        if file.name.startswith(('modules.builtin', 'modules.order')):
            shutil.copy(file, target)
    for file in kernel.modules(linux, _MODULES):
        into = target / file.relative_to(source)
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, into)
    (target / 'updates').mkdir()
    for file in modules:
        shutil.copy(file, target / 'updates')
    run('depmod', '-b', tree, kernel.release())


def _configure(tree, key):
    shutil.copy(FILES / 'init', tree / 'init')
    (tree / 'init').chmod(0o755)
    (tree / 'etc/ssh/sshd_config').write_text(
        'UseDNS no\nPermitRootLogin yes\nStrictModes no\n'
        'Subsystem sftp internal-sftp\n')
    ssh = tree / 'root/.ssh'
    ssh.mkdir(0o700, exist_ok=True)
    shutil.copy(key, ssh / 'id_ed25519')
    shutil.copy(key.with_suffix('.pub'), ssh / 'authorized_keys')
    (ssh / 'config').write_text('StrictHostKeyChecking no\n'
                                'LogLevel ERROR\n')
    # Each machine makes its own host keys.
    for file in (tree / 'etc/ssh').glob('ssh_host_*'):
        file.unlink()
    # QATs are on vfio-pci's denylist.
    (tree / 'etc/modprobe.d/machine.conf').write_text(
        'options vfio-pci disable_denylist=1\n')
    _add_lines(tree / 'etc/libvirt/qemu.conf', 'security_driver = "none"',
               'stdio_handler = "file"')
    _add_lines(tree / 'etc/libvirt/libvirtd.conf', 'unix_sock_group = "root"',
               'auth_unix_ro = "none"', 'auth_unix_rw = "none"',
               'auth_tcp = "none"', 'listen_tls = 0', 'listen_tcp = 1',
               'listen_addr = "0.0.0.0"')
    run('sed', '-i', 's/^root:[^:]*/root:/', tree / 'etc/shadow')


def _add_lines(path, *lines):
    with path.open('a') as file:
        file.write('\n'.join(['', *lines, '']))


def _add_nova(tree, nova, wheel):
    """Copy Nova's environment, and install nova-accel into it with pip."""
    there = tree / NOVA.relative_to('/')
    run('cp', '-a', nova, there)
    _as_in_machine(there, NOVA / 'bin/pip', 'install', '-q', '--no-index',
                   wheel)
