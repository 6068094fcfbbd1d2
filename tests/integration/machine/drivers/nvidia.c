// SPDX-License-Identifier: GPL-2.0-only
/*
 * A driver named "nvidia" that looks to a host's software like NVIDIA's vGPU
 * driver. It binds to NVIDIA GPUs, enables their VFs, and registers mdev types
 * on each VF, or on a card without VFs. It has these limits of the real one: a
 * VF has at most one vGPU, all vGPUs of a card have the same type, and their
 * number is limited by the card's memory.
 *
 * A vGPU computes nothing. It is a PCI function whose BAR 0 is laid out like
 * that of the emulated card (../qemu/accelerator.c): magic, ids, function,
 * serial (here the type's number), resets, and scratch registers from 0x100,
 * which a reset clears. It has no interrupts and does no DMA. It can migrate
 * (stop and copy) to any card if the type is the same.
 */
#include <asm/unaligned.h>
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mdev.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vfio.h>

/* Linux 6.2 added this. QEMU asks older kernels for it too. */
#ifndef VFIO_DEVICE_FEATURE_MIG_DATA_SIZE
#define VFIO_DEVICE_FEATURE_MIG_DATA_SIZE 9
struct vfio_device_feature_mig_data_size {
	__aligned_u64 stop_copy_length;
};
#endif

#define CONFIG_SIZE 256
#define BAR_SIZE 4096
#define MAGIC 0x43434146
#define SCRATCH 0x100
/* The upper bits of a file offset are the region's index. */
#define REGION_SHIFT 40

struct kind {
	const char *number;
	const char *name;
	unsigned int gib;
};

#define A100 0x20b0
#define A100_GIB 40
static const struct kind kinds[] = {
	{ "468", "GRID A100-4C", 4 },
	{ "469", "GRID A100-5C", 5 },
	{ "470", "GRID A100-8C", 8 },
	{ "471", "GRID A100-10C", 10 },
	{ "472", "GRID A100-20C", 20 },
	{ "473", "GRID A100-40C", 40 },
};

/* The resources of a PF that its vGPUs share. */
struct card {
	struct mutex lock;
	const struct kind *current_kind;
	unsigned int vgpus;
};

/* The parent of mdevs: a VF, or a card without VFs. */
struct parent {
	struct mdev_parent mdev;
	struct pci_dev *pci;
	struct card *card;
	unsigned int vgpus;
	struct mdev_type types[ARRAY_SIZE(kinds)];
	struct mdev_type *pointers[ARRAY_SIZE(kinds)];
};

struct state {
	__le32 magic;
	__le32 number;
	u8 config[CONFIG_SIZE];
	u8 registers[BAR_SIZE];
};

/* The data of a migration file. */
struct stream {
	struct mutex lock;
	bool closed;
	size_t length;
	struct state state;
};

struct vgpu {
	struct vfio_device vfio;
	struct parent *parent;
	struct mutex lock;
	struct state state;
	enum vfio_device_mig_state migration;
	struct file *file;
	bool logging;
};

/* The limits on the number of vGPUs. */

static const struct kind *kind_of(struct parent *parent,
				  struct mdev_type *type)
{
	return &kinds[type - parent->types];
}

static struct parent *parent_of(struct mdev_type *type)
{
	return container_of(type->parent, struct parent, mdev);
}

static unsigned int room(struct parent *parent, const struct kind *kind)
{
	struct card *card = parent->card;
	unsigned int left = A100_GIB / kind->gib - card->vgpus;

	if (card->current_kind && card->current_kind != kind)
		return 0;
	if (parent->pci->is_virtfn)
		return left && !parent->vgpus;
	return left;
}

static int take(struct parent *parent, const struct kind *kind)
{
	struct card *card = parent->card;
	int ret = -ENOSPC;

	mutex_lock(&card->lock);
	if (room(parent, kind)) {
		card->current_kind = kind;
		card->vgpus++;
		parent->vgpus++;
		ret = 0;
	}
	mutex_unlock(&card->lock);
	return ret;
}

static void give_back(struct parent *parent)
{
	struct card *card = parent->card;

	mutex_lock(&card->lock);
	parent->vgpus--;
	if (!--card->vgpus)
		card->current_kind = NULL;
	mutex_unlock(&card->lock);
}

/* Configuration space and registers. */

static void clear(struct vgpu *vgpu, u16 device, u16 number)
{
	u8 *config = vgpu->state.config;
	u8 *registers = vgpu->state.registers;
	u32 resets = get_unaligned_le32(registers + 0x10);

	memset(&vgpu->state, 0, sizeof(vgpu->state));
	put_unaligned_le16(PCI_VENDOR_ID_NVIDIA, config + PCI_VENDOR_ID);
	put_unaligned_le16(device, config + PCI_DEVICE_ID);
	put_unaligned_le16(PCI_CLASS_DISPLAY_3D, config + PCI_CLASS_DEVICE);
	config[PCI_REVISION_ID] = 0xa1;
	put_unaligned_le16(PCI_VENDOR_ID_NVIDIA,
			   config + PCI_SUBSYSTEM_VENDOR_ID);
	put_unaligned_le16(number, config + PCI_SUBSYSTEM_ID);

	put_unaligned_le32(MAGIC, registers);
	put_unaligned_le32(PCI_VENDOR_ID_NVIDIA << 16 | device,
			   registers + 0x04);
	put_unaligned_le32(number, registers + 0x0c);
	put_unaligned_le32(resets + 1, registers + 0x10);
	vgpu->state.magic = cpu_to_le32(MAGIC);
	vgpu->state.number = cpu_to_le32(number);
}

static void reset(struct vgpu *vgpu)
{
	clear(vgpu, get_unaligned_le16(vgpu->state.config + PCI_DEVICE_ID),
	      le32_to_cpu(vgpu->state.number));
}

static u8 writable(unsigned int index, loff_t at)
{
	if (index == VFIO_PCI_BAR0_REGION_INDEX)
		return at >= SCRATCH ? 0xff : 0;
	switch (at) {
	case PCI_COMMAND:
		return PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;
	case PCI_CACHE_LINE_SIZE:
	case PCI_INTERRUPT_LINE:
	case PCI_BASE_ADDRESS_0 + 2:
	case PCI_BASE_ADDRESS_0 + 3:
		return 0xff;
	case PCI_BASE_ADDRESS_0 + 1:
		return (u8)~((BAR_SIZE - 1) >> 8);
	default:
		return 0;
	}
}

static u8 *region(struct vgpu *vgpu, unsigned int index, size_t *size)
{
	switch (index) {
	case VFIO_PCI_CONFIG_REGION_INDEX:
		*size = CONFIG_SIZE;
		return vgpu->state.config;
	case VFIO_PCI_BAR0_REGION_INDEX:
		*size = BAR_SIZE;
		return vgpu->state.registers;
	default:
		*size = 0;
		return NULL;
	}
}

static ssize_t vgpu_read(struct vfio_device *vfio, char __user *buffer,
			 size_t count, loff_t *where)
{
	struct vgpu *vgpu = container_of(vfio, struct vgpu, vfio);
	loff_t at = *where & ((1ULL << REGION_SHIFT) - 1);
	size_t size;
	u8 *cells = region(vgpu, *where >> REGION_SHIFT, &size);
	ssize_t ret;

	if (at >= size)
		return -EINVAL;
	count = min_t(size_t, count, size - at);
	mutex_lock(&vgpu->lock);
	ret = copy_to_user(buffer, cells + at, count) ? -EFAULT : count;
	mutex_unlock(&vgpu->lock);
	if (ret > 0)
		*where += ret;
	return ret;
}

static ssize_t vgpu_write(struct vfio_device *vfio, const char __user *buffer,
			  size_t count, loff_t *where)
{
	struct vgpu *vgpu = container_of(vfio, struct vgpu, vfio);
	unsigned int index = *where >> REGION_SHIFT;
	loff_t at = *where & ((1ULL << REGION_SHIFT) - 1);
	size_t size, i;
	u8 *cells = region(vgpu, index, &size);
	u8 words[8];

	if (at >= size)
		return -EINVAL;
	count = min3(count, sizeof(words), (size_t)(size - at));
	if (copy_from_user(words, buffer, count))
		return -EFAULT;
	mutex_lock(&vgpu->lock);
	for (i = 0; i < count; i++) {
		u8 mask = writable(index, at + i);

		cells[at + i] = (cells[at + i] & ~mask) | (words[i] & mask);
	}
	mutex_unlock(&vgpu->lock);
	*where += count;
	return count;
}

static long device_info(void __user *argument)
{
	struct vfio_device_info info = {};
	size_t least = offsetofend(struct vfio_device_info, num_irqs);

	if (copy_from_user(&info, argument, least))
		return -EFAULT;
	if (info.argsz < least)
		return -EINVAL;
	info.flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET;
	info.num_regions = VFIO_PCI_NUM_REGIONS;
	info.num_irqs = VFIO_PCI_NUM_IRQS;
	return copy_to_user(argument, &info, least) ? -EFAULT : 0;
}

static long region_info(struct vgpu *vgpu, void __user *argument)
{
	struct vfio_region_info info;
	size_t least = offsetofend(struct vfio_region_info, offset);
	size_t size;

	if (copy_from_user(&info, argument, least))
		return -EFAULT;
	if (info.argsz < least || info.index >= VFIO_PCI_NUM_REGIONS)
		return -EINVAL;
	region(vgpu, info.index, &size);
	info.size = size;
	info.offset = (u64)info.index << REGION_SHIFT;
	info.flags = size ? VFIO_REGION_INFO_FLAG_READ
			    | VFIO_REGION_INFO_FLAG_WRITE : 0;
	info.cap_offset = 0;
	return copy_to_user(argument, &info, least) ? -EFAULT : 0;
}

static long irq_info(void __user *argument)
{
	struct vfio_irq_info info;
	size_t least = offsetofend(struct vfio_irq_info, count);

	if (copy_from_user(&info, argument, least))
		return -EFAULT;
	if (info.argsz < least || info.index >= VFIO_PCI_NUM_IRQS)
		return -EINVAL;
	info.flags = 0;
	info.count = 0;
	return copy_to_user(argument, &info, least) ? -EFAULT : 0;
}

/* Migration. */

static ssize_t stream_read(struct file *file, char __user *buffer,
			   size_t count, loff_t *unused)
{
	struct stream *stream = file->private_data;
	loff_t *at = &file->f_pos;
	ssize_t ret = -ENODEV;

	mutex_lock(&stream->lock);
	if (!stream->closed)
		ret = simple_read_from_buffer(buffer, count, at,
					      &stream->state, stream->length);
	mutex_unlock(&stream->lock);
	return ret;
}

static ssize_t stream_write(struct file *file, const char __user *buffer,
			    size_t count, loff_t *unused)
{
	struct stream *stream = file->private_data;
	loff_t *at = &file->f_pos;
	ssize_t ret = -ENODEV;

	mutex_lock(&stream->lock);
	if (!stream->closed)
		ret = simple_write_to_buffer(&stream->state,
					     sizeof(stream->state), at,
					     buffer, count);
	if (ret > 0)
		stream->length = *at;
	mutex_unlock(&stream->lock);
	/* Data beyond the size of a vGPU's state is not a vGPU's. */
	return ret == 0 && count ? -ENOSPC : ret;
}

static int stream_release(struct inode *inode, struct file *file)
{
	kfree(file->private_data);
	return 0;
}

static const struct file_operations stream_operations = {
	.owner = THIS_MODULE,
	.read = stream_read,
	.write = stream_write,
	.release = stream_release,
	.llseek = no_llseek,
};

static struct file *open_stream(struct vgpu *vgpu, int flags)
{
	struct stream *stream = kzalloc(sizeof(*stream), GFP_KERNEL_ACCOUNT);
	struct file *file;

	if (!stream)
		return ERR_PTR(-ENOMEM);
	mutex_init(&stream->lock);
	file = anon_inode_getfile("vgpu-migration", &stream_operations,
				  stream, flags);
	if (IS_ERR(file)) {
		kfree(stream);
		return file;
	}
	stream_open(file->f_inode, file);
	if (flags == O_RDONLY) {
		stream->state = vgpu->state;
		stream->length = sizeof(stream->state);
	}
	/* One reference is for the user, one for vgpu->file. */
	get_file(file);
	vgpu->file = file;
	return file;
}

static void close_stream(struct vgpu *vgpu)
{
	struct stream *stream;

	if (!vgpu->file)
		return;
	stream = vgpu->file->private_data;
	mutex_lock(&stream->lock);
	stream->closed = true;
	mutex_unlock(&stream->lock);
	fput(vgpu->file);
	vgpu->file = NULL;
}

static int load(struct vgpu *vgpu)
{
	struct stream *stream = vgpu->file->private_data;
	int ret = -EINVAL;

	mutex_lock(&stream->lock);
	if (stream->length == sizeof(stream->state)
	    && stream->state.magic == vgpu->state.magic
	    && stream->state.number == vgpu->state.number) {
		vgpu->state = stream->state;
		ret = 0;
	}
	mutex_unlock(&stream->lock);
	return ret;
}

static struct file *step(struct vgpu *vgpu, enum vfio_device_mig_state next)
{
	int ret;

	if (next == VFIO_DEVICE_STATE_STOP_COPY)
		return open_stream(vgpu, O_RDONLY);
	if (next == VFIO_DEVICE_STATE_RESUMING)
		return open_stream(vgpu, O_WRONLY);
	if (vgpu->migration == VFIO_DEVICE_STATE_RESUMING) {
		ret = load(vgpu);
		if (ret)
			return ERR_PTR(ret);
	}
	close_stream(vgpu);
	return NULL;
}

static struct file *set_migration(struct vfio_device *vfio,
				  enum vfio_device_mig_state wanted)
{
	struct vgpu *vgpu = container_of(vfio, struct vgpu, vfio);
	enum vfio_device_mig_state next;
	struct file *file = NULL;
	int ret;

	mutex_lock(&vgpu->lock);
	while (vgpu->migration != wanted) {
		ret = vfio_mig_get_next_state(vfio, vgpu->migration, wanted,
					      &next);
		file = ret ? ERR_PTR(ret) : step(vgpu, next);
		if (IS_ERR(file))
			break;
		vgpu->migration = next;
	}
	mutex_unlock(&vgpu->lock);
	return file;
}

static int get_migration(struct vfio_device *vfio,
			 enum vfio_device_mig_state *state)
{
	struct vgpu *vgpu = container_of(vfio, struct vgpu, vfio);

	mutex_lock(&vgpu->lock);
	*state = vgpu->migration;
	mutex_unlock(&vgpu->lock);
	return 0;
}

static const struct vfio_migration_ops migration_operations = {
	.migration_set_state = set_migration,
	.migration_get_state = get_migration,
};

/*
 * A vGPU does no DMA, so it never dirties a page. But QEMU only migrates
 * devices that support dirty page tracking.
 */
static int start_logging(struct vfio_device *vfio,
			 struct rb_root_cached *ranges, u32 count,
			 u64 *page_size)
{
	struct vgpu *vgpu = container_of(vfio, struct vgpu, vfio);
	int ret;

	mutex_lock(&vgpu->lock);
	ret = vgpu->logging ? -EINVAL : 0;
	vgpu->logging = true;
	mutex_unlock(&vgpu->lock);
	return ret;
}

static int stop_logging(struct vfio_device *vfio)
{
	struct vgpu *vgpu = container_of(vfio, struct vgpu, vfio);

	mutex_lock(&vgpu->lock);
	vgpu->logging = false;
	mutex_unlock(&vgpu->lock);
	return 0;
}

static int read_log(struct vfio_device *vfio, unsigned long address,
		    unsigned long length, struct iova_bitmap *dirty)
{
	struct vgpu *vgpu = container_of(vfio, struct vgpu, vfio);

	return READ_ONCE(vgpu->logging) ? 0 : -EINVAL;
}

static const struct vfio_log_ops log_operations = {
	.log_start = start_logging,
	.log_stop = stop_logging,
	.log_read_and_clear = read_log,
};

static int vgpu_feature(struct vfio_device *vfio, u32 flags,
			void __user *argument, size_t size)
{
	struct vfio_device_feature_mig_data_size data = {
		.stop_copy_length = sizeof(struct state),
	};
	int ret;

	if ((flags & VFIO_DEVICE_FEATURE_MASK)
	    != VFIO_DEVICE_FEATURE_MIG_DATA_SIZE)
		return -ENOTTY;
	ret = vfio_check_feature(flags, size, VFIO_DEVICE_FEATURE_GET,
				 sizeof(data));
	if (ret != 1)
		return ret;
	return copy_to_user(argument, &data, sizeof(data)) ? -EFAULT : 0;
}

static void restart(struct vgpu *vgpu)
{
	mutex_lock(&vgpu->lock);
	reset(vgpu);
	close_stream(vgpu);
	vgpu->migration = VFIO_DEVICE_STATE_RUNNING;
	vgpu->logging = false;
	mutex_unlock(&vgpu->lock);
}

static long vgpu_ioctl(struct vfio_device *vfio, unsigned int command,
		       unsigned long value)
{
	struct vgpu *vgpu = container_of(vfio, struct vgpu, vfio);
	void __user *argument = (void __user *)value;

	switch (command) {
	case VFIO_DEVICE_GET_INFO:
		return device_info(argument);
	case VFIO_DEVICE_GET_REGION_INFO:
		return region_info(vgpu, argument);
	case VFIO_DEVICE_GET_IRQ_INFO:
		return irq_info(argument);
	case VFIO_DEVICE_RESET:
		restart(vgpu);
		return 0;
	default:
		return -ENOTTY;
	}
}

/* Creation and removal of vGPUs. */

static int vgpu_init(struct vfio_device *vfio)
{
	struct vgpu *vgpu = container_of(vfio, struct vgpu, vfio);
	struct mdev_type *type = to_mdev_device(vfio->dev)->type;
	struct parent *parent = parent_of(type);
	const struct kind *kind = kind_of(parent, type);
	u16 number;
	int ret = kstrtou16(kind->number, 10, &number);

	if (!ret)
		ret = take(parent, kind);
	if (ret)
		return ret;
	vgpu->parent = parent;
	mutex_init(&vgpu->lock);
	vgpu->migration = VFIO_DEVICE_STATE_RUNNING;
	vfio->migration_flags = VFIO_MIGRATION_STOP_COPY;
	vfio->mig_ops = &migration_operations;
	vfio->log_ops = &log_operations;
	clear(vgpu, parent->pci->device, number);
	return 0;
}

static void vgpu_release(struct vfio_device *vfio)
{
	struct vgpu *vgpu = container_of(vfio, struct vgpu, vfio);

	give_back(vgpu->parent);
	vfio_free_device(vfio);
}

static int vgpu_open(struct vfio_device *vfio)
{
	restart(container_of(vfio, struct vgpu, vfio));
	return 0;
}

static void vgpu_close(struct vfio_device *vfio)
{
	restart(container_of(vfio, struct vgpu, vfio));
}

static const struct vfio_device_ops vgpu_operations = {
	.name = "nvidia-vgpu",
	.init = vgpu_init,
	.release = vgpu_release,
	.open_device = vgpu_open,
	.close_device = vgpu_close,
	.read = vgpu_read,
	.write = vgpu_write,
	.ioctl = vgpu_ioctl,
	.device_feature = vgpu_feature,
};

static int vgpu_probe(struct mdev_device *mdev)
{
	struct vgpu *vgpu = vfio_alloc_device(vgpu, vfio, &mdev->dev,
					      &vgpu_operations);
	int ret;

	if (IS_ERR(vgpu))
		return PTR_ERR(vgpu);
	ret = vfio_register_emulated_iommu_dev(&vgpu->vfio);
	if (ret)
		vfio_put_device(&vgpu->vfio);
	else
		dev_set_drvdata(&mdev->dev, vgpu);
	return ret;
}

static void vgpu_remove(struct mdev_device *mdev)
{
	struct vgpu *vgpu = dev_get_drvdata(&mdev->dev);

	vfio_unregister_group_dev(&vgpu->vfio);
	vfio_put_device(&vgpu->vfio);
}

static unsigned int get_available(struct mdev_type *type)
{
	struct parent *parent = parent_of(type);
	unsigned int available;

	mutex_lock(&parent->card->lock);
	available = room(parent, kind_of(parent, type));
	mutex_unlock(&parent->card->lock);
	return available;
}

static ssize_t show_description(struct mdev_type *type, char *buffer)
{
	unsigned int gib = kind_of(parent_of(type), type)->gib;

	return sysfs_emit(buffer,
			  "num_heads=1, frl_config=60, framebuffer=%uM, max_resolution=4096x2160, max_instance=%u\n",
			  gib * 1024, A100_GIB / gib);
}

static struct mdev_driver vgpu_driver = {
	.device_api = VFIO_DEVICE_API_PCI_STRING,
	.driver = {
		.name = "nvidia-vgpu-vfio",
		.owner = THIS_MODULE,
		.mod_name = KBUILD_MODNAME,
	},
	.probe = vgpu_probe,
	.remove = vgpu_remove,
	.get_available = get_available,
	.show_description = show_description,
};

/* The PCI driver. */

static struct parent *add_parent(struct pci_dev *pci, struct card *card)
{
	struct parent *parent = kzalloc(sizeof(*parent), GFP_KERNEL);
	int i, ret;

	if (!parent)
		return ERR_PTR(-ENOMEM);
	parent->pci = pci;
	parent->card = card;
	for (i = 0; i < ARRAY_SIZE(kinds); i++) {
		parent->types[i].sysfs_name = kinds[i].number;
		parent->types[i].pretty_name = kinds[i].name;
		parent->pointers[i] = &parent->types[i];
	}
	ret = mdev_register_parent(&parent->mdev, &pci->dev, &vgpu_driver,
				   parent->pointers, ARRAY_SIZE(kinds));
	if (ret) {
		kfree(parent);
		return ERR_PTR(ret);
	}
	return parent;
}

static void remove_parent(struct parent *parent)
{
	if (parent) {
		mdev_unregister_parent(&parent->mdev);
		kfree(parent);
	}
}

/* The driver's data of a function. */
struct function {
	struct card card;
	struct parent *parent;
};

static struct pci_driver pci_driver;

static struct card *card_of(struct pci_dev *pci, struct function *function)
{
	struct pci_dev *pf = pci_physfn(pci);
	struct function *of_pf;

	if (pf == pci)
		return &function->card;
	if (pci_dev_driver(pf) != &pci_driver)
		return NULL;
	of_pf = pci_get_drvdata(pf);
	return of_pf ? &of_pf->card : NULL;
}

static int probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	struct function *function;
	struct card *card;
	int ret = pcim_enable_device(pci);

	if (ret)
		return ret;
	function = devm_kzalloc(&pci->dev, sizeof(*function), GFP_KERNEL);
	if (!function)
		return -ENOMEM;
	mutex_init(&function->card.lock);
	card = card_of(pci, function);
	if (!card)
		return -ENODEV;
	pci_set_drvdata(pci, function);
	if (pci_physfn(pci)->device != A100 || pci_sriov_get_totalvfs(pci))
		return 0;
	function->parent = add_parent(pci, card);
	return PTR_ERR_OR_ZERO(function->parent);
}

static void remove(struct pci_dev *pci)
{
	struct function *function = pci_get_drvdata(pci);

	if (pci->is_physfn)
		pci_disable_sriov(pci);
	remove_parent(function->parent);
}

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID),
	  PCI_CLASS_DISPLAY_3D << 8, 0xffff00 },
	{ }
};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver pci_driver = {
	.name = "nvidia",
	.id_table = ids,
	.probe = probe,
	.remove = remove,
	.sriov_configure = pci_sriov_configure_simple,
};

static int __init start(void)
{
	int ret = mdev_register_driver(&vgpu_driver);

	if (ret)
		return ret;
	ret = pci_register_driver(&pci_driver);
	if (ret)
		mdev_unregister_driver(&vgpu_driver);
	return ret;
}

static void __exit stop(void)
{
	pci_unregister_driver(&pci_driver);
	mdev_unregister_driver(&vgpu_driver);
}

module_init(start)
module_exit(stop)

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("vGPUs that calculate nothing, for tests");
