# SPDX-License-Identifier: Apache-2.0
"""Trees: real directories, recordings, and invalid ones."""

import gzip
import io
import json
import os
import stat
import tarfile

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.host import tree
from tests.unit import build


@pytest.fixture
def root(tmp_path):
    (tmp_path / 'sys' / 'bus').mkdir(parents=True)
    (tmp_path / 'proc').mkdir()
    return tmp_path


@pytest.fixture
def directory(root):
    return tree.Directory(root / 'sys')


def test_directory_returns_names_texts_and_links(root, directory):
    (root / 'sys' / 'b').write_text('text\n')
    (root / 'sys' / 'a').symlink_to('../x')
    (root / 'proc' / 'swaps').write_text('swaps')
    assert directory.names('sys') == ['a', 'b', 'bus']
    assert directory.text('sys/b') == 'text\n'
    assert directory.link('sys/a') == '../x'
    assert directory.text('proc/swaps') == 'swaps'


@pytest.mark.parametrize('path', [
    'sys/nothing', 'sys/loop', 'sys/dangling', 'sys/a\0b', 'nothing/at/all',
    'sys/file/below', 'sys/' + 'x' * 5000])
def test_missing_paths_return_nothing(root, directory, path):
    (root / 'sys' / 'loop').symlink_to('loop')
    (root / 'sys' / 'dangling').symlink_to('gone')
    (root / 'sys' / 'file').write_text('x')
    assert directory.names(path) == []
    assert directory.text(path) is None
    if path not in ('sys/loop', 'sys/dangling'):
        assert directory.link(path) is None
        assert not directory.has(path)


def test_unreadable_paths_exist(root, directory):
    (root / 'sys' / 'file').write_text('')
    (root / 'sys' / 'file').chmod(0o200)
    (root / 'sys' / 'link').symlink_to('nowhere')
    recording = tree.Recording({'sys/file': ''}, {'sys/link': 'nowhere'},
                               ['sys/bus'])
    for there in (directory, recording):
        assert [name for name in ('file', 'link', 'bus', 'x')
                if there.has(f'sys/{name}')] == ['file', 'link', 'bus']


def test_files_links_and_directories_are_distinguished(root, directory):
    (root / 'sys' / 'file').write_text('')
    assert directory.text('sys/bus') is None
    assert directory.link('sys/bus') is None
    assert directory.names('sys/file') == []
    assert directory.link('sys/file') is None
    assert directory.text('sys/file') == ''


def test_pipe_is_not_read(root, directory):
    os.mkfifo(root / 'sys' / 'pipe')
    assert directory.text('sys/pipe') is None
    assert directory.names('sys/pipe') == []


def test_device_is_not_read(root, directory):
    (root / 'sys' / 'zero').symlink_to('/dev/zero')
    assert directory.text('sys/zero') is None


def test_binary_content_is_decoded_with_replacement(root, directory):
    (root / 'sys' / 'binary').write_bytes(b'\xff\0\xfe10de')
    assert directory.text('sys/binary') == '\ufffd\0\ufffd10de'


def test_undecodable_name_can_be_read(root, directory):
    (root / 'sys' / os.fsdecode(b'\xff')).write_text('x')
    [_bus, name] = directory.names('sys')
    assert directory.text(f'sys/{name}') == 'x'


def test_no_more_than_the_limit_is_read(root, directory):
    with open(root / 'sys' / 'large', 'wb') as file:
        for _part in range(2):
            file.write(b'x' * tree.MAX_FILE)
    assert len(directory.text('sys/large')) == tree.MAX_FILE


def test_limit_is_larger_in_proc(root, directory):
    text = 'x' * (2 * tree.MAX_FILE)
    (root / 'proc' / 'mountinfo').write_text(text)
    assert directory.text('proc/mountinfo') == text
    path = root / 'copy.tar'
    (root / 'sys' / 'bus' / 'pci').mkdir()
    with tarfile.open(path, 'w') as archive:
        for name in ('sys', 'proc'):
            archive.add(root / name, f'host1/{name}')
    assert tree.open_tree(path).text('proc/mountinfo') == text


@pytest.mark.skipif(os.geteuid() == 0, reason='root reads everything')
def test_forbidden_paths_return_nothing(root, directory):
    (root / 'sys' / 'secret').write_text('x')
    (root / 'sys' / 'secret').chmod(0)
    (root / 'sys' / 'closed').mkdir(mode=0)
    assert directory.text('sys/secret') is None
    assert directory.names('sys/closed') == []


def test_recording_and_directory_return_the_same(root, directory):
    recording = tree.Recording(
        {'sys/devices/x/vendor': '0x10de\n', 'proc/swaps': ''},
        {'sys/bus/x': '../devices/x'}, ['sys/empty'])
    recording.write(root)
    for path in ('', 'sys', 'sys/devices', 'sys/devices/x', 'sys/empty',
                 'sys/bus', 'proc', 'nothing', 'sys/devices/x/vendor'):
        if path:
            assert recording.names(path) == directory.names(path), path
        assert recording.text(path) == directory.text(path), path
        assert recording.link(path) == directory.link(path), path


def test_recording_can_be_dumped_and_loaded():
    for name in ('l1', 'l1-8gpu'):
        recording = build.recorded(name)
        again = tree.Recording.loads(recording.dumps())
        assert again.dumps() == recording.dumps()
        assert again.files == recording.files
        assert again.links == recording.links


_paths = st.lists(st.sampled_from(['a', 'b', '..', '', 'x y', 'é']),
                  min_size=1, max_size=4).map('/'.join)


@given(st.dictionaries(_paths, st.text()), st.dictionaries(_paths, st.text()),
       st.lists(_paths))
def test_any_recording_can_be_dumped_and_loaded(files, links, folders):
    recording = tree.Recording(files, links, folders)
    text = recording.dumps()
    again = tree.Recording.loads(text)
    assert (again.files, again.links, again.folders) == (
        files, links, sorted(set(folders)))
    assert text.isascii()
    assert len(text.splitlines()) >= len(files) + len(links)


@pytest.mark.parametrize('text, says', [
    ('', 'Expecting value'),
    ('[]', 'has no "nova_accel_recording": 1'),
    ('{}', 'has no "nova_accel_recording": 1'),
    ('{"nova_accel_recording": 2}', 'has no "nova_accel_recording": 1'),
    ('[' * 100_000, 'nested too deep'),
    ('{"nova_accel_recording": 1, "files": []}', 'are not text'),
    ('{"nova_accel_recording": 1, "files": {"a": 1}}', 'are not text'),
    ('{"nova_accel_recording": 1, "links": {"a": null}}', 'are not text'),
    ('{"nova_accel_recording": 1, "folders": {"a": "b"}}', 'are not text'),
    ('{"nova_accel_recording": 1, "folders": [1]}', 'are not text'),
])
def test_text_that_is_not_a_recording_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        tree.Recording.loads(text)


@pytest.mark.parametrize('key', ['files', 'links', 'folders'])
def test_directories_too_deep_are_refused(key):
    paths = ['a/' * 100_000 + str(number) for number in range(20)]
    with pytest.raises(ValueError, match="too deep ones: 'a/a/"):
        tree.Recording(**{key: dict.fromkeys(paths, '')})


@pytest.mark.parametrize('target, leads', [
    ('../../../devices/pci0000:00/x', 'sys/devices/pci0000:00/x'),
    ('/sys/devices/x', 'sys/devices/x'),
    ('x', 'sys/bus/pci/devices/x'),
    ('../' * 40 + 'etc', 'etc'),
])
def test_a_link_is_followed_within_the_machine(target, leads):
    recording = tree.Recording(links={'sys/bus/pci/devices/d': target})
    assert tree.follow(recording, 'sys/bus/pci/devices/d') == leads


def test_path_that_is_not_a_link_is_returned():
    assert tree.follow(tree.Recording(), 'sys/x') == 'sys/x'


def test_a_loop_is_followed_one_link_deep():
    recording = tree.Recording(links={'sys/a': 'b', 'sys/b': 'a'})
    assert tree.follow(recording, 'sys/a') == 'sys/b'


_SMALL = tree.Recording({'sys/devices/x/vendor': '0x10de\n'},
                        {'sys/bus/pci/devices/x': '../../../devices/x'},
                        ['sys/bus/pci'])


def _is_small(opened):
    return (opened.text('sys/devices/x/vendor') == '0x10de\n'
            and tree.follow(opened, 'sys/bus/pci/devices/x')
            == 'sys/devices/x')


@pytest.mark.parametrize('below', ['sys', ''])
def test_a_copy_of_sys_or_the_directory_above_it_can_be_opened(
        tmp_path, below):
    _SMALL.write(tmp_path)
    assert _is_small(tree.open_tree(tmp_path / below))


@pytest.mark.parametrize('pack', [bytes, gzip.compress])
def test_a_recording_can_be_opened_packed_or_not(tmp_path, pack):
    path = tmp_path / 'recording'
    path.write_bytes(pack(_SMALL.dumps().encode()))
    assert _is_small(tree.open_tree(path))
    assert _is_small(tree.open_tree(str(path)))


@pytest.mark.parametrize('mode', ['w', 'w:gz'])
@pytest.mark.parametrize('above', ['', './', '/', 'host1/', 'a/b/'])
def test_a_tar_of_a_copy_can_be_opened(tmp_path, mode, above):
    _SMALL.write(tmp_path / 'copy')
    path = tmp_path / 'copy.tar'
    with tarfile.open(path, mode) as archive:
        archive.add(tmp_path / 'copy' / 'sys', f'{above}sys')
    assert _is_small(tree.open_tree(path))


@pytest.mark.parametrize('inside', ['', 'host1', 'a/b'])
def test_a_tar_can_be_made_inside_of_a_copy(tmp_path, inside):
    _SMALL.write(tmp_path / 'copy')
    path = tmp_path / 'copy.tar'
    with tarfile.open(path, 'w') as archive:
        archive.add(tmp_path / 'copy' / 'sys', inside or '.')
    assert _is_small(tree.open_tree(path))


def test_a_tar_of_a_live_sys_is_padded(tmp_path):
    path = tmp_path / 'live.tar'
    with tarfile.open(path, 'w') as archive:
        member = tarfile.TarInfo('sys/bus/vendor')
        member.size = 4096
        archive.addfile(member, io.BytesIO(b'0x10de\n'.ljust(4096, b'\0')))
    assert tree.open_tree(path).text('sys/bus/vendor') == '0x10de\n'
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter='data')
    assert tree.open_tree(tmp_path).text('sys/bus/vendor') == '0x10de\n'


def test_padding_of_a_tar_does_not_count_as_size(tmp_path, monkeypatch):
    monkeypatch.setattr(tree, 'MAX_RECORDING', 4096)
    test_a_tar_of_a_live_sys_is_padded(tmp_path)
    with tarfile.open(tmp_path / 'live.tar', 'a') as archive:
        for number in range(8):
            member = tarfile.TarInfo(f'sys/{number}')
            member.size = 4096
            archive.addfile(member, io.BytesIO(b'x'.ljust(4096, b'\0')))
    assert tree.open_tree(tmp_path / 'live.tar').text('sys/7') == 'x'


def test_links_of_a_tar_count_as_size(tmp_path, monkeypatch):
    monkeypatch.setattr(tree, 'MAX_RECORDING', 4096)
    path = tmp_path / 'links.tar'
    with tarfile.open(path, 'w') as archive:
        for number in range(8):
            member = tarfile.TarInfo(f'sys/bus/{number}')
            member.type, member.linkname = tarfile.SYMTYPE, 'x' * 1000
            archive.addfile(member)
    _check_refused(path)


def _tar_of(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode='w') as archive:
        for name, kind in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, '/dev/zero'
            archive.addfile(member)
    return buffer.getvalue()


def test_other_members_of_a_tar_are_ignored(tmp_path):
    path = tmp_path / 'odd.tar'
    path.write_bytes(_tar_of(
        ('sys/bus/pci/devices/x', tarfile.SYMTYPE),
        ('sys/pipe', tarfile.FIFOTYPE), ('sys/device', tarfile.CHRTYPE),
        ('sys/hard', tarfile.LNKTYPE), ('../../etc/x', tarfile.SYMTYPE)))
    opened = tree.open_tree(path)
    assert opened.link('sys/bus/pci/devices/x') == '/dev/zero'
    assert opened.names('sys') == ['bus']


def _header(kind, size=0, more=()):
    member = tarfile.TarInfo('sys/bus/x')
    member.type, member.size, member.pax_headers = kind, size, dict(more)
    return member.tobuf(tarfile.PAX_FORMAT) + _tar_of(
        ('sys/bus/y', tarfile.DIRTYPE))


def _broken():
    whole = gzip.compress(os.urandom(3000) + b'{}' * 4000)
    return {
        'empty': b'', 'binary': bytes(range(256)), 'text': b'hello\n',
        'json': b'{"a": 1}', 'deep': b'[' * 100_000,
        'cut': whole[:-9], 'packed text': gzip.compress(b'hello'),
        'a header only': whole[:2], 'wrong method': b'\x1f\x8b' + b'x' * 99,
        'a tar without sys': _tar_of(('etc/x', tarfile.SYMTYPE)),
        'many values': b'{"nova_accel_recording": 1, "folders": ['
                       + b'[],' * 1_000_000 + b'[]]}',
        'a tar with a long name': _header(tarfile.XHDTYPE, 1 << 20),
        'a tar with a long path': _header(tarfile.GNUTYPE_LONGNAME, 1 << 20),
        'a sparse tar': _header(tarfile.GNUTYPE_SPARSE),
        'a new sparse tar': _header(tarfile.REGTYPE, 0, {
            'GNU.sparse.major': '1', 'GNU.sparse.minor': '0'}),
        'an empty tar': _tar_of(), 'half a tar': _tar_of(
            ('sys/bus/x', tarfile.SYMTYPE))[:700][:300],
    }


@pytest.mark.parametrize('what', _broken())
def test_file_that_is_not_a_recording_is_reported(tmp_path, what):
    path = tmp_path / 'file'
    path.write_bytes(_broken()[what])
    _check_refused(path)


def _check_refused(path):
    with pytest.raises(errors.TreeError) as caught:
        tree.open_tree(path)
    message = str(caught.value)
    assert message.startswith(f'sysfs_root {errors.quote(str(path))}: ')
    assert 'name /sys' in message
    assert '\n' not in message


def test_damaged_packed_recording_is_reported(tmp_path):
    damaged = bytearray(gzip.compress(_SMALL.dumps().encode()))
    damaged[10:40] = b'\xff' * 30
    path = tmp_path / 'file'
    path.write_bytes(damaged)
    _check_refused(path)


@pytest.mark.parametrize('name', ['gone', 'loop', 'a\0b', 'a\nb', 'x' * 300])
def test_path_that_cannot_be_opened_is_reported(tmp_path, name):
    (tmp_path / 'loop').symlink_to('loop')
    _check_refused(tmp_path / name)


def test_directory_without_bus_is_refused(tmp_path):
    _check_refused(tmp_path)


def test_a_recording_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tree, 'MAX_RECORDING', 10_000)
    path = tmp_path / 'file'
    path.write_bytes(gzip.compress(b' ' * 10_001))
    with pytest.raises(errors.TreeError, match='larger than 10000 bytes'):
        tree.open_tree(path)


@pytest.mark.parametrize('limit', ['MAX_RECORDING', 'MAX_ENTRIES'])
def test_a_tar_that_is_too_large_is_refused(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(tree, limit, 50)
    path = tmp_path / 'file.tar'
    with tarfile.open(path, 'w') as archive:
        for number in range(60):
            member = tarfile.TarInfo(f'sys/bus/{number}')
            member.size = 1
            archive.addfile(member, io.BytesIO(b'x'))
    with pytest.raises(errors.TreeError, match='more than a recording'):
        tree.open_tree(path)


def test_writing_a_recording_makes_plain_files_and_links(tmp_path):
    _SMALL.write(tmp_path)
    path = tmp_path / 'sys' / 'devices' / 'x' / 'vendor'
    assert stat.S_ISREG(path.lstat().st_mode)
    assert (tmp_path / 'sys/bus/pci/devices/x').readlink().parts[-1] == 'x'


@pytest.mark.parametrize('path', ['../outside', '{}/outside',
                                  'a/../../outside'])
def test_a_recording_is_written_below_its_directory_only(tmp_path, path):
    inside = tmp_path / 'inside'
    text = json.dumps({'nova_accel_recording': 1,
                       'files': {path.format(tmp_path): 'x'}})
    try:
        tree.Recording.loads(text).write(inside)
    except (ValueError, OSError):
        pass
    assert not (tmp_path / 'outside').exists()


def test_a_recording_is_not_written_through_its_own_links(tmp_path):
    recording = tree.Recording(
        links={'a': str(tmp_path), 'a/outside': 'x'})
    try:
        recording.write(tmp_path / 'inside')
    except (ValueError, OSError):
        pass
    assert not (tmp_path / 'outside').is_symlink()
