# SPDX-License-Identifier: Apache-2.0
"""``openstack accel``: commands of python-openstackclient."""
