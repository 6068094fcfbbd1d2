# SPDX-License-Identifier: Apache-2.0
"""The device profile of a flavor, which nova-api expands."""

import json
import pathlib

import fixtures
from nova.scheduler.filters import aggregate_instance_extra_specs

from tests.functional import cloud


class ProfileTest(cloud.Cloud):

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')

    def assertRejected(self, flavor, *words):
        status, text = self.rejected(flavor)
        self.assertEqual(400, status)
        for word in words:
            self.assertIn(word, text)
        return text

    def test_unknown_profile(self):
        answer = self.assertRejected(self.flavor('nobody'),
                                     "'nobody' is not known")
        self.assertNotIn(self.profiles, answer)
        self.assertIn(f'looked for in {self.profiles}',
                      self.stdlog.logger.output)

    def assertResizeRejected(self, server, flavor, words):
        from nova.tests.functional.api import client
        error = self.assertRaises(
            client.OpenStackApiException, self.api.post_server_action,
            server['id'], {'resize': {'flavorRef': flavor}})
        self.assertEqual(400, error.response.status_code)
        self.assertIn(words, error.response.text)

    def test_unknown_profile_at_resize(self):
        self.assertResizeRejected(self.boot(self.flavor()),
                                  self.flavor('nobody'),
                                  "'nobody' is not known")

    def no_name(self, value=''):
        return self.flavor(extra_spec={'accel:device_profile': value})

    def test_empty_profile_name(self):
        for value in ('', '  '):
            self.assertRejected(
                self.no_name(value), 'accel:device_profile: '
                f"'{value}' names no device profile; ",
                'remove the key from the flavor')

    def test_empty_name_is_not_given_to_cyborg(self):
        self.flags(endpoint_override='http://127.0.0.1:1', group='cyborg')
        self.assertRejected(self.no_name(), 'names no device profile')

    def test_empty_profile_name_at_resize(self):
        self.assertResizeRejected(self.boot(self.flavor()), self.no_name(),
                                  'names no device profile')

    def test_existing_server_with_an_empty_profile_name(self):
        with fixtures.MockPatch('nova_accel.api.expansion.expand'):
            server = self.boot(self.no_name())
        self.assertEqual('', server['flavor']['extra_specs'][
            'accel:device_profile'])
        self.start_compute('compute2')
        server = self._reboot_server(server, hard=True)
        server = self._rebuild_server(server, cloud.IMAGE)
        server = self._shelve_server(server)
        server = self._unshelve_server(server)
        server = self._migrate_server(server)
        server = self._confirm_resize(server)
        self.gpu_profile('gpu')
        server = self._resize_server(server, self.flavor('gpu'))
        server = self._confirm_resize(server)
        self.assertEqual(1, len(self.allocated(server)))
        self._delete_server(server)

    def test_unknown_profile_is_left_to_cyborg(self):
        self.flags(endpoint_override='http://127.0.0.1:1', group='cyborg')
        _status, text = self.rejected(self.flavor('nobody'))
        self.assertNotIn('not known', text)
        self.assertNotIn(self.profiles, text)

    def test_broken_file_is_named(self):
        pathlib.Path(self.profiles, 'gpu.yaml').write_text(
            'name: gpu\ngroups:\n- resources: {CUSTOM_GPU: 0}\n')
        answer = self.assertRejected(
            self.flavor('gpu'), "profile 'gpu'", 'group 0', 'CUSTOM_GPU',
            '0 is not between 1 and')
        self.assertNotIn(self.profiles, answer)

    def test_file_is_read_again_when_it_changes(self):
        flavor = self.flavor('gpu')
        self.assertRejected(flavor, 'not known')
        self.gpu_profile('gpu')
        self.assertEqual(1, len(self.hostdevs(self.boot(flavor))))
        self.gpu_profile('gpu', count=2)
        self.assertEqual(2, len(self.hostdevs(self.boot(flavor))))

    def test_resize_to_a_copy_of_the_flavor_applies_a_changed_profile(self):
        self.flags(allow_resize_to_same_host=True)
        self.gpu_profile('gpu', numa='required')
        flavor = self.flavor('gpu')
        server = self.boot(flavor)
        self.gpu_profile('gpu', numa='preferred')
        self.assertResizeRejected(server, flavor, 'must change flavor')
        server = self._resize_server(server, self.flavor('gpu'))
        server = self._confirm_resize(server)
        self.assertEqual('preferred', server['flavor']['extra_specs'][
            'nova_accel:numa_ACCEL0'])

    def test_profile_removed_from_a_file_is_unknown(self):
        path = pathlib.Path(self.profiles, 'all.json')
        good = [{'name': name, 'groups': [{'resources': {cloud.GPU: 1}}]}
                for name in ('gpu', 'nic')]
        path.write_text(json.dumps(good))
        gpu, nic = self.flavor('gpu'), self.flavor('nic')
        self.boot(gpu)
        path.write_text(json.dumps([{'name': 'nic', 'groups': []}]))
        self.assertRejected(gpu, "'gpu' is not known")
        self.boot(nic)

    def test_off_without_quotes(self):
        pathlib.Path(self.profiles, 'gpu.yaml').write_text(
            f'name: gpu\ngroups:\n- resources: {{{cloud.GPU}: 1}}\n'
            '  numa: off\n')
        server = self.boot(self.flavor('gpu'))
        self.assertEqual(1, len(self.hostdevs(server)))
        self.assertNotIn('nova_accel:numa_ACCEL0',
                         server['flavor']['extra_specs'])

    def test_broken_file_keeps_the_last_valid_profile(self):
        flavor = self.flavor('gpu')
        path = self.gpu_profile('gpu')
        self.boot(flavor)
        path.write_text('name: gpu\ngroups: [')
        self.boot(flavor)

    def test_flavor_that_also_requests_the_class(self):
        self.gpu_profile('gpu')
        for key in (f'resources:{cloud.GPU}', f'resources1:{cloud.GPU}'):
            self.assertRejected(
                self.flavor('gpu', extra_spec={key: '1'}),
                f'also asks for {cloud.GPU}', key)

    def test_profile_too_large_for_a_flavor(self):
        self.write_profile('big', groups=[{
            'resources': {cloud.GPU: 1},
            'traits': {f'CUSTOM_{"X" * 60}_{number}_{index}': 'required'
                       for number in range(3)}} for index in range(64)])
        self.assertRejected(self.flavor('big'), 'a flavor holds')

    def test_bitstream_that_is_not_a_uuid(self):
        pathlib.Path(self.profiles, 'fpga.json').write_text(json.dumps(
            [{'name': 'fpga', 'groups': [
                {'resources:FPGA': '1', 'accel:bitstream_id': 'abc'}]}]))
        self.assertRejected(self.flavor('fpga'),
                            "bitstream 'abc' is not a uuid")

    def test_profile_in_cyborgs_format(self):
        pathlib.Path(self.profiles, 'theirs.json').write_text(json.dumps(
            {'device_profiles': [{'name': 'theirs', 'uuid': 'x', 'groups': [
                {f'resources:{cloud.GPU}': '1',
                 'trait:CUSTOM_NVLINK': 'required'}] * 2}]}))
        server = self.boot(self.flavor('theirs'))
        self.assertEqual(2, len(self.hostdevs(server)))

    def test_affinity_with_groups_in_cyborgs_format(self):
        path = pathlib.Path(self.profiles, 'theirs.json')
        flavor = self.flavor('theirs')
        for groups, state in ((2, 'ACTIVE'), (3, 'ERROR')):
            # Each switch has at most two devices.
            path.write_text(json.dumps({
                'name': 'theirs', 'affinity': [{'same': 'pcie_switch'}],
                'groups': [{f'resources:{cloud.GPU}': '1'}] * groups}))
            self.boot(flavor, state=state)

    def test_group_policy(self):
        self.write_profile('both', groups=[
            {'resources': {cloud.GPU: 1}, 'numa': numa}
            for numa in ('off', 'preferred')])
        server = self.boot(self.flavor('both'))
        self.assertEqual(2, len(self.hostdevs(server)))
        self.assertNotIn('group_policy', server['flavor']['extra_specs'])
        self.assertNotIn('did not specify any group policy',
                         self.stdlog.logger.output)
        # In Placement one provider has all devices of the class. isolate still
        # gives two cards.
        server = self.boot(self.flavor(
            'both', extra_spec={'group_policy': 'isolate'}))
        self.assertEqual(2, len(self.allocated(server)))

    def test_aggregate_filter_ignores_added_extra_specs(self):
        """AggregateInstanceExtraSpecsFilter ignores nova_accel's extra specs.

        The filter compares extra specs without a scope with the metadata of
        aggregates.
        """
        manager = self.scheduler.manager.host_manager
        self.useFixture(fixtures.MockPatchObject(manager, 'enabled_filters', [
            aggregate_instance_extra_specs.AggregateInstanceExtraSpecsFilter(),
            *manager.enabled_filters]))
        self.write_profile('both', groups=[
            {'resources': {cloud.GPU: 1}, 'numa': numa}
            for numa in ('off', 'preferred')])
        flavor = self.flavor('both', extra_spec={
            'aggregate_instance_extra_specs:gpu': 'true'})
        self.boot(flavor, state='ERROR')
        made = self.api.post_aggregate({'aggregate': {'name': 'gpus'}})
        self.api.add_host_to_aggregate(made['id'], 'compute1')
        self.api.post_aggregate_action(
            made['id'], {'set_metadata': {'metadata': {'gpu': 'true'}}})
        self.assertEqual(2, len(self.hostdevs(self.boot(flavor))))

    def test_forbidden_trait(self):
        self.write_profile('other', groups=[{
            'resources': {cloud.GPU: 1},
            'traits': {'CUSTOM_NVLINK': 'forbidden'}}])
        self.boot(self.flavor('other'), state='ERROR')

    def test_extra_specs_are_validated(self):
        from nova.tests.functional.api import client
        flavor = self.flavor()
        for key, value, fits in (
                ('nova_accel:numa_ACCEL0', 'required', True),
                ('nova_accel:numa_ACCEL0', 'perhaps', False),
                ('nova_accel:nmua_ACCEL0', 'required', False)):
            body = {'extra_specs': {key: value}}
            if fits:
                self.admin_api.post_extra_spec(flavor, body)
                continue
            error = self.assertRaises(
                client.OpenStackApiException,
                self.admin_api.post_extra_spec, flavor, body)
            self.assertEqual(400, error.response.status_code)
