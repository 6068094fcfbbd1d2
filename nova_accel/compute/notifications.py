# SPDX-License-Identifier: Apache-2.0
"""Versioned notifications about devices, beside those of Nova.

They go where Nova's go, in the same form: ``[notifications]
notification_format`` turns them on, and ``versioned_notifications_topics``
names the topics. doc/source/reference/notifications.rst has a sample of each.

Seams: ``nova.notifications.objects.base``: NotificationBase,
NotificationPayloadBase, EventType, NotificationPublisher. The classes are not
registered with Nova, whose registry has only Nova's own.
"""

import collections.abc

from nova import context
import nova.conf
from nova.notifications.objects import base
from nova.objects import base as nova_base
from nova.objects import fields

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.placement import inventory
from nova_accel.core.request import flavor_specs

CONF = nova.conf.CONF

_unregistered = nova_base.NovaObjectRegistry.register_if(False)


@_unregistered
class EventType(base.EventType):
    """An event type whose action is not one of Nova's."""

    fields = {'action': fields.StringField()}


class _Payload(base.NotificationPayloadBase):
    """A payload whose names are ours."""

    OBJ_PROJECT_NAMESPACE = 'nova_accel'

    def __init__(self, **values):
        super().__init__()
        for name, value in values.items():
            setattr(self, name, value)


@_unregistered
class AccelDevicePayload(_Payload):
    """A Region of a device, and the state of some of its units."""

    # Version 1.0: Initial version
    VERSION = '1.0'
    fields = {
        'host': fields.StringField(),
        'node': fields.StringField(),
        'uuid': fields.UUIDField(),
        'name': fields.StringField(),
        'address': fields.StringField(),
        'pci_ids': fields.StringField(),
        'resource_class': fields.StringField(),
        'numa_node': fields.IntegerField(nullable=True),
        'state': fields.StringField(),
        'reason': fields.StringField(nullable=True),
        'units': fields.ListOfStringsField(),
        'units_total': fields.IntegerField(),
        'units_available': fields.IntegerField(),
        'servers': fields.ListOfStringsField(),
    }


@_unregistered
class AccelAssignedDevicePayload(_Payload):
    """A device of a server."""

    # Version 1.0: Initial version
    VERSION = '1.0'
    fields = {
        'uuid': fields.UUIDField(),
        'address': fields.StringField(),
        'pci_ids': fields.StringField(nullable=True),
        'resource_class': fields.StringField(nullable=True),
        'group': fields.StringField(),
    }


@_unregistered
class AccelInstancePayload(_Payload):
    """A server, and the devices that it got or released."""

    # Version 1.0: Initial version
    VERSION = '1.0'
    fields = {
        'host': fields.StringField(),
        'node': fields.StringField(),
        'uuid': fields.UUIDField(),
        'tenant_id': fields.StringField(nullable=True),
        'user_id': fields.StringField(nullable=True),
        'display_name': fields.StringField(nullable=True),
        'device_profile': fields.StringField(nullable=True),
        'devices': fields.ListOfObjectsField('AccelAssignedDevicePayload'),
        'devices_held': fields.IntegerField(),
    }


@_unregistered
class AccelDeviceNotification(base.NotificationBase):
    # Version 1.0: Initial version
    VERSION = '1.0'
    fields = {'payload': fields.ObjectField('AccelDevicePayload')}


@_unregistered
class AccelInstanceNotification(base.NotificationBase):
    # Version 1.0: Initial version
    VERSION = '1.0'
    fields = {'payload': fields.ObjectField('AccelInstancePayload')}


#: By state: what begins it and what ends it, as action and phase, and the
#: priority of its begin.
_ACTIONS = {
    model.WithheldState.DRAINED: (
        ('drain', None), ('undrain', None), fields.NotificationPriority.INFO),
    model.WithheldState.RESET_FAILED: (
        ('reset', fields.NotificationPhase.ERROR), ('recover', None),
        fields.NotificationPriority.ERROR),
    **dict.fromkeys(
        (model.WithheldState.DIRTY, model.WithheldState.NOT_STRICT), (
            ('withhold', None), ('recover', None),
            fields.NotificationPriority.INFO)),
    model.WithheldState.CLEANING: (
        ('clean', fields.NotificationPhase.START), ('recover', None),
        fields.NotificationPriority.INFO),
    model.WithheldState.CLEANING_FAILED: (
        ('clean', fields.NotificationPhase.ERROR), ('recover', None),
        fields.NotificationPriority.ERROR),
}
_OTHER = (('withhold', None), ('recover', None),
          fields.NotificationPriority.ERROR)


def device_changed(item: inventory.Offered, node: str,
                   state: model.WithheldState,
                   units: collections.abc.Iterable[model.Unit],
                   is_begin: bool, reason: str,
                   servers: collections.abc.Iterable[str]) -> None:
    """Tell that units of a Region are withheld, or are not any more.

    :param node: name of the compute node
    :param reason: why they are withheld, or ''
    :param servers: uuids of those that hold any of them
    """
    begin, end, priority = _ACTIONS.get(state, _OTHER)
    action, phase = begin if is_begin else end
    AccelDeviceNotification(
        priority=priority if is_begin else fields.NotificationPriority.INFO,
        publisher=_publisher(),
        event_type=EventType('accel_device', action, phase),
        payload=AccelDevicePayload(
            host=CONF.host, node=node, uuid=item.uuid, name=item.name,
            address=str(item.device.address), pci_ids=item.device.ids,
            resource_class=item.region.resource_class,
            numa_node=item.device.location.numa_node, state=str(state),
            reason=reason or None,
            units=sorted(str(address) for unit in units for address in unit),
            units_total=item.region.size, units_available=item.region.total,
            servers=sorted(servers))).emit(context.get_admin_context())


def instance_changed(uuid: str, instance, node: str,
                     devices: collections.abc.Iterable[hostdev.Hostdev],
                     is_begin: bool, held: int,
                     here: inventory.NodeInventory) -> None:
    """Tell that a server has got devices, or has released them.

    :param uuid: of the server
    :param instance: nova.objects.Instance, None if Nova does not know it
    :param node: name of the compute node
    :param held: how many devices it has now on this host
    :param here: what the compute node offers, for the names of classes
    """
    specs = instance.flavor.extra_specs if instance else {}
    AccelInstanceNotification(
        priority=fields.NotificationPriority.INFO, publisher=_publisher(),
        event_type=EventType('accel_instance',
                             'attach' if is_begin else 'detach'),
        payload=AccelInstancePayload(
            host=CONF.host, node=node, uuid=uuid,
            tenant_id=getattr(instance, 'project_id', None),
            user_id=getattr(instance, 'user_id', None),
            display_name=getattr(instance, 'display_name', None),
            device_profile=specs.get(flavor_specs.EXPANDED_KEY),
            devices=[_assigned(device, here) for device in sorted(
                devices, key=lambda device: device.alias)],
            devices_held=held)).emit(context.get_admin_context())


def _publisher() -> base.NotificationPublisher:
    return base.NotificationPublisher(
        host=CONF.host, source=fields.NotificationSource.COMPUTE)


def _assigned(device: hostdev.Hostdev, here) -> AccelAssignedDevicePayload:
    item = here.find_by_alias(device.alias, device.address)
    return AccelAssignedDevicePayload(
        uuid=device.provider, address=str(device.address),
        group=device.group,
        pci_ids=device.ids or None,
        resource_class=item.region.resource_class if item else None)
