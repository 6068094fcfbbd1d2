# SPDX-License-Identifier: Apache-2.0
"""The option ``fabric_manager``."""

import json

import pytest

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.fabric import definition
from nova_accel.core.fabric import manager
from nova_accel.host import fmpm

_MANAGERS = {'fmpm': fmpm.MANAGER,
             'mine': manager.FabricManager(open=None)}
_GOOD = {'command': ['/bin/fmpm'], 'modules': {'1': '0000:1b:00.0'}}


def _parse(fields):
    return definition.parse(json.dumps(fields), _MANAGERS)


def test_definition():
    found = _parse({**_GOOD, 'modules_command': ['/bin/smi', '-q'],
                    'timeout': 5})
    assert found.manager == 'fmpm'
    assert found.modules == {1: model.PciAddress(0, 0x1b, 0, 0)}
    assert found.modules_command == ('/bin/smi', '-q')
    assert found.settings == {'command': ('/bin/fmpm',), 'timeout': 5}
    assert json.loads(found.text)['timeout'] == 5


def test_definition_of_another_manager():
    found = _parse({'manager': 'mine', 'modules': _GOOD['modules']})
    assert (found.manager, found.settings) == ('mine', {})


@pytest.mark.parametrize('text', ['', ' \n'])
def test_option_that_is_not_set(text):
    assert definition.parse(text, _MANAGERS) is None


@pytest.mark.parametrize('text, says', [
    ('{', 'is not JSON'), ('[]', 'is not a JSON object'),
    *((json.dumps(_GOOD | wrong), says) for wrong, says in (
        ({'manager': 'other'}, "'other' is not installed; known managers: "
         'fmpm, mine'),
        ({'manager': ['fmpm']}, "['fmpm'] is not installed"),
        ({'manager': 'mine'}, "does not know the key 'command'"),
        ({'shell': 1}, "does not know the key 'shell'"),
        ({'command': '/bin/fmpm'}, 'command is not a list of words'),
        ({'command': ['fmpm']}, 'command does not begin with the absolute'),
        ({'command': ['/bin/fmpm', '{address}']},
         'has {address}; it may have none'),
        ({'modules_command': []}, 'modules_command is not a list of words'),
        ({'timeout': 601}, 'timeout is not a number of seconds, 1 to 600'),
        ({'modules': {}}, 'does not tell which card each module is; add'),
        ({'modules': ['0000:1b:00.0']}, 'modules is not an object'),
        ({'modules': {'x': '0000:1b:00.0'}}, "has 'x', which is not the num"),
        ({'modules': {'1': '1b:00.0'}}, "has '1b:00.0', which is not a PCI"),
        ({'modules': {'1': 5}}, 'has 5, which is not a PCI address'),
        ({'modules': {'1': '0000:1b:00.0', '2': '0000:1B:00.0'}},
         'has 0000:1b:00.0 twice'),
        ({'modules': {'1': '0000:1b:00.0', '01': '0000:2b:00.0'}},
         'has module 1 twice')))])
def test_unusable_definition(text, says):
    with pytest.raises(errors.EntryError) as caught:
        definition.parse(text, _MANAGERS)
    assert str(caught.value).startswith('[nova_accel] fabric_manager: ')
    assert says in str(caught.value)


def test_modules_command_of_any_manager():
    text = json.dumps({'manager': 'of another package', 'x': 1,
                       'modules_command': ['/bin/smi']})
    assert definition.modules_command(text) == ('/bin/smi',)
    for wrong in ('{', '[]', '{}', '{"modules_command": ["x"]}'):
        with pytest.raises(errors.EntryError):
            definition.modules_command(wrong)
