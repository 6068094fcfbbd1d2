# SPDX-License-Identifier: Apache-2.0
"""Adds to the XML of Nova's configuration objects what they cannot write.

Seam: ``nova.virt.libvirt.config.LibvirtConfigObject.format_dom``.
"""

import collections.abc

from nova.virt.libvirt import config


def change(written: config.LibvirtConfigObject,
           how: collections.abc.Callable[..., None]) -> None:
    """Let a function change the XML that a configuration object writes.

    :param how: gets the lxml element, whenever it is written
    """
    write = written.format_dom

    def format_dom():
        element = write()
        how(element)
        return element

    written.format_dom = format_dom
