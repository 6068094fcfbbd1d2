# SPDX-License-Identifier: Apache-2.0
"""Operations as root for a caller that may be an intruder."""

import inspect
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from oslo_config import cfg
import pytest

from nova_accel.host import operate
from nova_accel.host import operations
from nova_accel.host import privileged
from nova_accel.host import tree as trees
from nova_accel.host import trust
from tests.unit import intruder

_CARD = '0000:81:00.0'
_ROOT = pathlib.Path(__file__).parents[3]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason='needs root')


def _operations():
    return sorted(name for name in vars(operations.Operations)
                  if not name.startswith('_'))


@pytest.mark.parametrize('name', _operations())
def test_entry_points_take_the_arguments_of_their_operation(name):
    """Above all, they do not take the path of sysfs."""
    [context] = [context for context in privileged.CONTEXTS
                 if context.is_entrypoint(getattr(privileged, name))]
    _self, *takes = inspect.signature(
        getattr(operations.Operations, name)).parameters
    assert [*inspect.signature(
        getattr(privileged, name).args[0]).parameters] == takes


def test_live_sysfs_uses_the_privileged_operations(monkeypatch, tmp_path):
    tree = trees.Directory(tmp_path)
    assert isinstance(operate.on(tree), operations.Operations)
    monkeypatch.setattr(trees, 'is_live', lambda tree: True)
    assert operate.on(tree) is privileged


@pytest.mark.skipif(' /sys sysfs ' not in pathlib.Path(
    '/proc/mounts').read_text(), reason='has no sysfs')
def test_sysfs_is_recognised_by_its_file_system_type(tmp_path):
    assert trees.is_live(trees.Directory('/sys'))
    # It is mounted as well.
    assert not trees.is_live(trees.Directory('/proc'))
    assert not trees.is_live(trees.Directory(tmp_path))


@pytest.mark.parametrize('what', ['file', 'link', 'pipe', 'nothing'])
def test_nothing_but_sysfs_is_written(tmp_path, what):
    victim = tmp_path / 'victim'
    victim.write_text('as it was')
    attribute = tmp_path / 'sys/bus/pci/devices' / _CARD / 'sriov_numvfs'
    attribute.parent.mkdir(parents=True)
    {'file': attribute.touch, 'nothing': lambda: None,
     'link': lambda: attribute.symlink_to(victim),
     'pipe': lambda: os.mkfifo(attribute)}[what]()
    with pytest.raises((OSError, ValueError)):
        privileged._ByRoot(str(tmp_path / 'sys')).set_num_vfs(_CARD, 1)
    assert victim.read_text() == 'as it was'
    assert what != 'file' or attribute.read_text() == ''


# Paths that only root can write


@pytest.mark.parametrize('spoil, says', [
    (lambda path: path.chmod(0o664), "users other than root can write '{}'"),
    (lambda path: path.parent.chmod(0o777), "can write '{.parent}'"),
    (lambda path: path.parent.chmod(0o1777), ''),
    (lambda path: path.unlink(), 'No such file'),
    pytest.param(lambda path: os.chown(path, 65534, -1),
                 "'{}' does not belong to root", marks=needs_root),
    pytest.param(lambda path: os.chown(path.parent, 65534, -1),
                 "'{.parent}' does not belong to root", marks=needs_root)])
@pytest.mark.parametrize('through', ['', 'file', 'folder'])
def test_path_that_others_can_change_raises(tmp_path, spoil, says,
                                            through):
    path = tmp_path / 'real/file'
    path.parent.mkdir()
    path.write_text('')
    named = path
    if through == 'file':
        named = tmp_path / 'link'
        named.symlink_to('real/file')
    elif through == 'folder':
        (tmp_path / 'link').symlink_to(path.parent)
        named = tmp_path / 'link/file'
    trust.check_only_root_writes(str(named))
    spoil(path)
    if not says:
        return trust.check_only_root_writes(str(named))
    with pytest.raises((OSError, ValueError)) as raised:
        trust.check_only_root_writes(str(named))
    assert says.format(path) in str(raised.value)


@needs_root
def test_link_of_another_user_raises(tmp_path):
    (tmp_path / 'file').write_text('')
    (tmp_path / 'theirs').symlink_to('file')
    os.lchown(tmp_path / 'theirs', 65534, -1)
    (tmp_path / 'ours').symlink_to('theirs')
    with pytest.raises(ValueError, match="theirs' does not belong to root"):
        trust.check_only_root_writes(str(tmp_path / 'ours'))


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """Return a function that writes and reads root's configuration."""
    monkeypatch.setattr(privileged, '_CONFIGURATION', (str(tmp_path),))

    def make(files, *arguments):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        started = cfg.ConfigOpts()
        started([word.format(tmp_path) for word in arguments],
                project='nova', default_config_files=[])
        monkeypatch.setattr(privileged.cfg, 'CONF', started)
        return privileged._configuration()
    return make


def _entry(*words):
    return '[nova_accel]\ndevice_spec = ' + json.dumps(
        {'address': _CARD, 'program': words}) + '\n'


@pytest.mark.parametrize('more', [
    ['--config-dir', '{}/nova.conf.d'], []], ids=['named', 'beside'])
def test_programs_are_those_of_all_configuration_files(configured, more):
    configuration = configured(
        {'nova.conf': _entry('/x', '{bitstream}'),
         'nova.conf.d/b.conf': _entry('/y', '{bitstream}'),
         'nova.conf.d/a.conf': '[DEFAULT]\nstate_path = /var/lib/nova\n',
         'nova.conf.d/a.txt': _entry('/z', '{bitstream}')},
        '--config-file', '{}/nova.conf', *more)
    assert privileged._programs(configuration) == {
        ('/x', '{bitstream}'), ('/y', '{bitstream}')}
    assert configuration.state_path == '/var/lib/nova'


def test_configuration_is_read_again_at_each_use(configured, tmp_path):
    configured({'nova.conf': _entry('/x', '{bitstream}')},
               '--config-file', '{}/nova.conf')
    (tmp_path / 'nova.conf').write_text(_entry('/y', '{bitstream}'))
    assert privileged._programs(privileged._configuration()) == {
        ('/y', '{bitstream}')}


@pytest.mark.parametrize('spoil, says', [
    (lambda path: path.chmod(0o666), 'users other than root can write'),
    (lambda path: path.write_text('device_spec'), 'Failed to parse'),
    (lambda path: (path.unlink(), path.symlink_to(__file__)),
     'is not below')])
def test_configuration_that_others_can_change_raises(
        configured, tmp_path, spoil, says):
    configured({'nova.conf': ''}, '--config-file', '{}/nova.conf')
    spoil(tmp_path / 'nova.conf')
    with pytest.raises(ValueError, match=says):
        privileged._configuration()


def test_missing_state_path_raises(configured):
    with pytest.raises(ValueError, match='does not set state_path'):
        privileged._owner(configured({}))


# A real privsep daemon, and an intruder in place of nova-compute


@pytest.fixture
def place():
    """Return a folder that every user can read."""
    path = pathlib.Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def _run(place, *arguments):
    done = subprocess.run(
        [sys.executable, intruder.__file__, str(place), *arguments],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, 'PYTHONPATH': str(_ROOT)})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_root
def test_daemon_refuses_requests_of_an_intruder(place):
    said = _run(place, 'fork')
    assert said.pop('programmed') == [0, 'bits 0\n']
    assert said.pop('probed') == '0'
    assert said.pop('fabric manager') == [0, '-a 3\n']
    assert said.pop('modules') == [0, 'modules\n']
    assert said.pop('capabilities') == {
        'context': '0000000000000000', 'program_context': '0000000000000004',
        'clean_context': '0000000000000000'}
    # Each request was refused, and nothing has changed.
    assert {name: text.partition(':')[0] for name, text in said.items()} == {
        'other command': 'ValueError', 'more words': 'ValueError',
        'file of root': 'ValueError', 'file behind a link': 'ValueError',
        'link': 'ValueError', 'pipe': 'ValueError',
        'no device': 'FileNotFoundError', 'other cleaner': 'ValueError',
        'other probe': 'ValueError', 'other address': 'ValueError',
        'other fabric manager': 'ValueError',
        'part of the fabric manager': 'ValueError',
        'no fabric manager': 'ValueError', 'other modules': 'ValueError',
        'other operation': 'ValueError', 'other partition': 'ValueError',
        'other sysfs': 'FileNotFoundError',
        'other sysfs and manager': 'TypeError'}
    assert (place / 'secret').read_text() == 'secret'
    assert (place / 'nova/sys/bus/pci/devices' / intruder.CARD
            / 'sriov_numvfs').read_text() == ''
    assert not (place / 'ran').exists()


@needs_root
def test_daemon_started_with_a_foreign_configuration_refuses(place):
    """sudo and rootwrap start it by a command with any --config-file."""
    said = _run(place, 'command')
    assert said == {'programmed': 'ValueError: configuration '
                    f"'{place}/etc/nova.conf' is not below /etc or "
                    '/usr/share'}
    assert not (place / 'ran').exists()
