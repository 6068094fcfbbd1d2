# SPDX-License-Identifier: Apache-2.0
"""Machines: what sysfs and proc show, and recordings of strangers."""

import gzip
import io
import json
import os
import random
import tarfile
import tempfile

from nova_accel.cmd import drawing
from nova_accel.cmd import host as show
from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.device_spec import policy
from nova_accel.core.device_spec import suggestion
from nova_accel.core.placement import host_summary
from nova_accel.core.placement import inventory
from nova_accel.host import health
from nova_accel.host import loader
from nova_accel.host import reader
from nova_accel.host import recorder
from nova_accel.host import tree as trees
from tests.fuzz import forms
from tests.fuzz import harness
from tests.unit import build
from tests.unit import field

_NODE = inventory.Node(build.ROOT, 'host')

# Those of all kinds first, then any other PCI device.
_ENTRIES = (
    {'vendor_id': '10de', 'product_id': '20b0', 'mdev_type': 'nvidia-468'},
    {'vendor_id': '10de', 'product_id': '26b9', 'vgpu_type': 1145},
    {'parent': 'mtty', 'mdev_type': 'mtty-1'},
    {'vendor_id': '8086', 'product_id': '09c4', 'kind': 'fpga'},
    {'vendor_id': '8086', 'product_id': '09c5', 'kind': 'fpga'},
    {'vendor_id': '8086', 'product_id': '37c8', 'num_vfs': 'all'},
    {'vendor_id': '10de', 'reset': 'if_possible'},
    {'address': {'bus': '(?!ff)'}})


def _recordings() -> list[bytes]:
    """Return the recorded machines, and those of public reports."""
    found = harness.files('tests/data/hosts/*.json')
    for path in sorted(field.FOLDER.glob('*.yaml')):
        with tempfile.TemporaryDirectory() as folder:
            field.load(path).write(folder)
            found.append(recorder.record(
                trees.open_tree(folder)).dumps().encode())
    return found


class Sysfs(harness.Harness):
    """Trees of sysfs and proc, as JSON, up to what nova-compute reports."""

    form = forms.Json

    def __init__(self):
        self._entries, problems = reader.parse(map(json.dumps, _ENTRIES))
        assert not problems

    def seeds(self) -> list[bytes]:
        return _recordings()

    def run(self, content: bytes) -> bool:
        try:
            tree = trees.Recording.loads(content.decode(errors='replace'))
        except ValueError:
            return False
        kinds = loader.open_all(tree)
        decide = reader.read_machine(
            tree, kinds=kinds, policy=policy.Policy(allow_unsafe_host=True))
        host = decide(self._entries)
        self._report(tree, host)
        self._show(host, suggestion.suggest(
            host.functions, kinds.values(), lambda items: decide(
                reader.parse(map(json.dumps, items))[0])))
        return bool(host.devices)

    def _report(self, tree, host) -> None:
        here = inventory.NodeInventory(host, _NODE)
        text = host_summary.dumps(here.offered, {}, host.links,
                                  host.cpuless_nodes)
        assert len(text) <= host_summary.MAX_BYTES
        host_summary.loads(text, build.ROOT)
        for function in host.functions:
            if not isinstance(function.address, model.ParentName):
                health.read(tree, function, 1)

    def _show(self, host, found) -> None:
        json.dumps(show.as_data(host, [], '', host.problems, [], found))
        for line in (*drawing.draw(host, '', host.problems, True),
                     *drawing.refused(host), *drawing.suggest(found)):
            assert line.isprintable(), f'a line of host show: {line!r}'


class Recordings(harness.Harness):
    """Files that strangers send, and anonymous recordings of them."""

    form = forms.Json

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()

    def seeds(self) -> list[bytes]:
        return _recordings()

    def whole(self) -> list[bytes]:
        mark = b'{"nova_accel_recording": 1, "folders": '
        deep = {'a/' * 100_000 + str(number): '' for number in range(20)}
        huge, sparse = tarfile.TarInfo('x'), tarfile.TarInfo('x')
        huge.type, huge.size = tarfile.XHDTYPE, 1 << 30
        sparse.size, sparse.pax_headers = 1 << 30, {
            'GNU.sparse.major': '1', 'GNU.sparse.minor': '0',
            'GNU.sparse.name': 'y'}
        return [
            *(_repeated(mark + b'[', item * (60_000_000 // 20 // len(item)),
                        20) for item in (b'[],', b'"ab",', b'1.5,', b'{},')),
            _repeated(b'{"nova_accel_recording": 1, "files": ',
                      json.dumps(deep).encode(), 1),
            _repeated(b'', bytes(8 << 20), 12), mark + b'[' * 10**6,
            _repeated(huge.tobuf(tarfile.USTAR_FORMAT), bytes(16 << 20), 64),
            _repeated(sparse.tobuf(tarfile.PAX_FORMAT) + b'99999999\n',
                      b'9999\n' * 200_000, 64),
            gzip.compress(_tar({f'proc/{number}': bytes(8 << 20)
                                for number in range(10)}, {})),
            gzip.compress(_tar({'sys/bus/x': b''}, {
                f'sys/bus/{number}': 'x' * 500_000 for number in range(200)},
                tarfile.PAX_FORMAT))]

    def wrap(self, rng: random.Random, content: bytes) -> bytes:
        match rng.randrange(10):
            case 0:
                return gzip.compress(content, 1)
            case 1:
                packed = _as_tar(content)
                if rng.random() < 0.5 and packed:
                    start = rng.randrange(len(packed))
                    packed = packed[:start] + rng.randbytes(2) + (
                        packed[start + 2:])
                return packed
        return content

    def run(self, content: bytes) -> bool:
        path = os.path.join(self._folder.name, 'machine')
        with open(path, 'wb') as file:
            file.write(content)
        try:
            tree = trees.open_tree(path)
        except errors.TreeError as error:
            harness.check_error(error)
            return False
        reader.read(trees.Recording.loads(recorder.record(tree).dumps()))
        return True


def _as_tar(content: bytes) -> bytes:
    """Return the files and links of a recording as a tar."""
    try:
        loaded = json.loads(content)
        return _tar({path: str(text).encode(errors='replace')
                     for path, text in loaded['files'].items()},
                    loaded['links'])
    except (ValueError, LookupError, TypeError, AttributeError,
            RecursionError):
        return b''


def _repeated(start: bytes, part: bytes, times: int) -> bytes:
    """Return a compressed file that begins so and repeats a part."""
    return gzip.compress(start, 1) + gzip.compress(part, 1) * times


def _tar(files: dict[str, bytes], links: dict[str, str],
         form: int = tarfile.GNU_FORMAT) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode='w', format=form) as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for path, target in links.items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, str(target)
            archive.addfile(member)
    return packed.getvalue()
