// SPDX-License-Identifier: GPL-2.0-only
/*
 * Takes the attribute reset_subordinate from all PCI bridges, as on a kernel
 * older than Linux 6.13 and its backports. It does not give it back.
 */
#include <linux/module.h>
#include <linux/pci.h>

static int __init old_bridges_init(void)
{
	static const struct attribute attribute = {
		.name = "reset_subordinate",
	};
	struct pci_dev *device = NULL;

	for_each_pci_dev(device)
		if (pci_is_bridge(device))
			sysfs_remove_file(&device->dev.kobj, &attribute);
	return 0;
}

static void __exit old_bridges_exit(void)
{
}

module_init(old_bridges_init);
module_exit(old_bridges_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("PCI bridges without reset_subordinate");
