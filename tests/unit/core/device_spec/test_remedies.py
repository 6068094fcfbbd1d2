# SPDX-License-Identifier: Apache-2.0
"""What happens if an operator does what a refusal says, to the letter."""

import dataclasses
import json
import re

from hypothesis import assume
from hypothesis import given
from hypothesis import strategies as st

from nova_accel.core import model
from tests.unit import build

_MOUNTED = 'disk x is mounted'


@st.composite
def _machines(draw):
    """Return one or two slots behind bridges; all in one IOMMU group or not.

    Also the function that an entry names.
    """
    how = draw(st.sampled_from(model.BusReset))
    alone = draw(st.booleans())
    functions = []
    for slot in range(draw(st.integers(1, 2))):
        port = f'0000:80:0{slot}.0'
        functions.append(build.function(port, '8086:1', resets_below=how,
                                        class_code=build.PCI_BRIDGE))
        functions += [build.function(
            f'0000:8{slot + 1}:00.{number}', f'10de:{slot}00{number}',
            class_code=draw(st.sampled_from(
                [0x030000, 0x040300, 0x0c0330, 0x010802])),
            location=model.Location(ports=(port,)),
            iommu_group=str(slot * alone),
            driver=draw(st.sampled_from([None, 'vfio-pci', 'nvidia'])),
            use=draw(st.sampled_from(['', '', _MOUNTED])),
            console=draw(st.sampled_from([False, False, True])),
            reset_methods=draw(st.sampled_from([(), ('flr',), ('pm',)])))
            for number in range(draw(st.integers(1, 3)))]
    return functions, draw(st.sampled_from([
        function for function in functions if not function.is_bridge]))


def _follow(remedy, functions, entry):
    """Return the machine and the entry after an operator did what it says.

    :returns: None if the operator can do nothing
    """
    before = functions, dict(entry)
    named = re.search(r'name all of them in one entry, in place of .*?: '
                      r'(\{.*?\})', remedy)
    if named:
        entry = json.loads(named[1])
    for words, keys in (('"reset": "if_possible"', {'reset': 'if_possible'}),
                        ('"one_time_use": "yes"', {'one_time_use': 'yes'})):
        if words in remedy:
            entry = {**entry, **keys}
    for words, facts in (
            ('load vfio-pci', {'resets_below': model.BusReset.HOT_RESET}),
            ('Linux 6.13', {'resets_below': model.BusReset.SUBORDINATE}),
            ('another console', {'console': False})):
        if words in remedy:
            functions = [dataclasses.replace(function, **facts)
                         for function in functions]
    return (functions, entry) if (functions, entry) != before else None


@given(_machines(), st.sampled_from([
    {}, {'reset': 'if_possible'}, {'keeps_data': 'yes'},
    {'one_time_use': 'yes', 'resource_class': 'CUSTOM_X'}]))
def test_a_remedy_that_was_followed_helps(machine, keys):
    functions, named = machine
    entry = {'vendor_id': '10de', 'product_id': named.product_id, **keys}
    seen = set()
    while True:
        host = build.host(functions, entry)
        refusals = {refusal.address: refusal for refusal in host.refusals}
        if named.address not in refusals:
            break
        refusal = refusals[named.address]
        assert refusal.reason not in seen
        seen.add(refusal.reason)
        after = _follow(refusal.remedy, functions, entry)
        assume(after)
        functions, entry = after
    by_address = {function.address: function for function in functions}
    offered = [by_address[address] for device in host.devices
               for region in device.regions for unit in region.units
               for address in unit]
    assert named.address in {function.address for function in offered}
    assert not any(function.use for function in offered)
    assert all(function.address == named.address for function in offered
               if function.console)


@given(_machines())
def test_all_is_to_be_named_only_if_servers_can_have_it(machine):
    functions, named = machine
    host = build.host(functions, {'product_id': named.product_id})
    for refusal in host.refusals:
        if 'name all of them in one entry, in place' in refusal.remedy:
            unit = [function for function in functions
                    if function.iommu_group == named.iommu_group
                    and not function.is_bridge]
            assert len({function.address.bus for function in unit}) == 1
            assert not any(function.use for function in unit)
