# SPDX-License-Identifier: Apache-2.0
"""NCCL's topology files for guests with all cards of a machine.

``python -m tests.unit.nccl`` writes them to tests/data/golden/nccl.
"""

import collections.abc
import dataclasses
import tempfile

from nova_accel.cmd import guest_topology
from nova_accel.core import model
from nova_accel.core import pci_class
from nova_accel.core.guest import nccl_topology
from nova_accel.host import reader
from nova_accel.host import tree
from tests.unit import build
from tests.unit import field

GOLDEN = build.DATA / 'golden' / 'nccl'


def machines() -> collections.abc.Iterator[tuple[str, model.Host]]:
    """Yield each machine of tests/data, with its cards offered."""
    entries = build.entries({})
    for path in sorted((build.DATA / 'hosts').glob('*.json')):
        yield path.stem, reader.read(tree.open_tree(path), entries)
    for path in sorted(field.FOLDER.glob('*.yaml')):
        with tempfile.TemporaryDirectory() as folder:
            field.load(path).write(folder)
            yield path.stem, reader.read(tree.open_tree(folder), entries)


def with_links(host: model.Host) -> model.Host:
    """Return a machine whose PCI Express links all have 16 lanes."""
    return dataclasses.replace(host, functions=tuple(
        dataclasses.replace(function, max_link_speed=32.0, max_link_width=16)
        for function in host.functions))


def render(host: model.Host) -> str:
    """Return the file for a guest with all GPUs and network cards."""
    classes = {function.address: function.class_code >> 16
               for function in host.functions}
    return nccl_topology.render(guest_topology.plan(host, [
        address for device in host.devices for region in device.regions
        for unit in region.units for address in unit
        if classes.get(address) in pci_class.NCCL]), host, has_cells=True)


def files() -> collections.abc.Iterator[tuple[str, str]]:
    """Yield name and text of each file."""
    for name, host in machines():
        yield name, render(host)
        # The recordings are older than links in them.
        if name == 'l1-8gpu':
            yield f'{name}-links', render(with_links(host))


if __name__ == '__main__':
    GOLDEN.mkdir(exist_ok=True)
    for name, text in files():
        path = GOLDEN / f'{name}.xml'
        if text:
            path.write_text(text)
        else:
            path.unlink(missing_ok=True)
