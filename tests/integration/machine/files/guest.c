// SPDX-License-Identifier: Apache-2.0
/*
 * PID 1 of a guest of the machine. It prints on the console which PCI
 * functions exist, are added and are removed, registers of accelerators, how
 * many blocks of NVMe disks a guest has written, and the document of nova-accel
 * that describes the devices.
 *
 * It is one program without a shell, because in nested emulation a fork takes
 * half a second. Each line is an event, `GUEST {JSON}`, for guest.py.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/input.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FUNCTIONS "/sys/bus/pci/devices"
#define MOST 256
#define LOOK_MS 500
#define ALIVE_S 5
#define PAGE 4096
#define DOCUMENT "/sys/firmware/qemu_fw_cfg/by_name/" \
	"opt/org.openstack.nova-accel/devices/raw"
#define WRITTEN 0xcafe0001u
/* A guest writes this at every MiB of a disk. */
#define BLOCKS "/sys/block"
#define MIB (1 << 20)
#define MARK "a guest wrote this"

/* Registers (32-bit words) of qemu/accelerator.c, and of QEMU's edu. */
enum { MAGIC = 0, IDS = 1, FUNCTION = 2, SERIAL = 3, LOGIC = 0x14 / 4,
       SCRATCH = 0x100 / 4 };
enum { EDU_ID = 0, EDU_INVERTED = 1 };
#define OUR_MAGIC 0x43434146u

struct function {
	char address[16];
	/* Tells a function from a later one at the same address. */
	ino_t inode;
};

static struct function known[MOST];
static int known_count;

static void say(const char *format, ...)
{
	char line[768];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	/* One write, so that no kernel message splits the line. */
	dprintf(1, "GUEST %s\n", line);
}

static char *text(const char *folder, const char *name, char *into, int size)
{
	char path[400];
	int file, got = 0;

	snprintf(path, sizeof path, "%s/%s", folder, name);
	file = open(path, O_RDONLY);
	if (file >= 0) {
		got = read(file, into, size - 1);
		close(file);
	}
	into[got > 0 ? got : 0] = 0;
	into[strcspn(into, "\n")] = 0;
	return into;
}

static const char *driver_of(const char *folder, char *into, int size)
{
	char path[400], *last;
	int got;

	snprintf(path, sizeof path, "%s/driver", folder);
	got = readlink(path, into, size - 1);
	into[got > 0 ? got : 0] = 0;
	last = strrchr(into, '/');
	return last ? last + 1 : into;
}

static void *bar0(const char *folder, size_t *size)
{
	char path[400];
	struct stat about;
	void *memory;
	int file;

	snprintf(path, sizeof path, "%s/enable", folder);
	file = open(path, O_WRONLY);
	if (file >= 0) {
		if (write(file, "1", 1) != 1)
			say("{\"event\": \"error\", \"text\": \"%s\"}", path);
		close(file);
	}
	snprintf(path, sizeof path, "%s/resource0", folder);
	file = open(path, O_RDWR);
	if (file < 0)
		return NULL;
	*size = fstat(file, &about) ? 0 : about.st_size;
	memory = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	return memory == MAP_FAILED ? NULL : memory;
}

/*
 * An accelerator's registers are at the start of BAR0. With dfl=on they are in
 * its last page.
 */
static volatile uint32_t *ours(void *bar, size_t size)
{
	volatile uint32_t *first = bar, *last;

	if (first[MAGIC] == OUR_MAGIC || size < 2 * PAGE)
		return first[MAGIC] == OUR_MAGIC ? first : NULL;
	last = first + (size - PAGE) / sizeof *last;
	return last[MAGIC] == OUR_MAGIC ? last : NULL;
}

static void read_registers(const char *address, const char *folder,
			   const char *vendor, const char *device)
{
	size_t size;
	void *bar = bar0(folder, &size);
	volatile uint32_t *word;

	if (!bar)
		return;
	word = ours(bar, size);
	if (word) {
		uint32_t before = word[SCRATCH], logic = word[LOGIC];

		word[SCRATCH] = WRITTEN;
		word[LOGIC] = WRITTEN;
		say("{\"event\": \"accelerator\", \"address\": \"%s\", "
		    "\"magic\": \"0x%08x\", \"ids\": \"0x%08x\", "
		    "\"function\": %u, \"serial\": \"0x%08x\", "
		    "\"before\": \"0x%08x\", \"after\": \"0x%08x\", "
		    "\"logic\": \"0x%08x\"}",
		    address, word[MAGIC], word[IDS], word[FUNCTION],
		    word[SERIAL], before, word[SCRATCH], logic);
	} else if (!strcmp(vendor, "0x1234") && !strcmp(device, "0x11e8")) {
		word = bar;
		word[EDU_INVERTED] = 0x12345678;
		say("{\"event\": \"edu\", \"address\": \"%s\", "
		    "\"id\": \"0x%08x\", \"inverted\": \"0x%08x\"}",
		    address, word[EDU_ID], word[EDU_INVERTED]);
	}
	munmap(bar, size);
}

static void came(const char *address)
{
	char folder[64], vendor[16], device[16], class[16], node[16];
	char subvendor[16], subdevice[16], link[300], path[PATH_MAX];
	const char *driver;

	snprintf(folder, sizeof folder, FUNCTIONS "/%s", address);
	driver = driver_of(folder, link, sizeof link);
	text(folder, "numa_node", node, sizeof node);
	say("{\"event\": \"there\", \"address\": \"%s\", \"vendor\": \"%s\", "
	    "\"device\": \"%s\", \"class\": \"%s\", "
	    "\"subsystem\": \"%s:%s\", \"driver\": \"%s\", \"numa\": %s, "
	    "\"path\": \"%s\"}",
	    address, text(folder, "vendor", vendor, sizeof vendor),
	    text(folder, "device", device, sizeof device),
	    text(folder, "class", class, sizeof class),
	    text(folder, "subsystem_vendor", subvendor, sizeof subvendor),
	    text(folder, "subsystem_device", subdevice, sizeof subdevice),
	    driver, *node ? node : "-1", realpath(folder, path) ? path : "");
	/* Do not touch bridges and functions that have a driver. */
	if (!*driver && strncmp(class, "0x06", 4))
		read_registers(address, folder, vendor, device);
}

/* A disk is there once its driver has found it: later than its function. */
static void use_disk(const char *name)
{
	static char block[PAGE];
	char path[64], folder[64], address[16];
	int file, blocks = 0, before = 0;
	off_t size;

	snprintf(path, sizeof path, "/dev/%.32s", name);
	file = open(path, O_RDWR);
	if (file < 0)
		return;
	size = lseek(file, 0, SEEK_END);
	for (off_t at = 0; at < size; at += MIB) {
		if (pread(file, block, PAGE, at) != PAGE)
			break;
		before += !memcmp(block, MARK, sizeof MARK);
		memcpy(block, MARK, sizeof MARK);
		blocks += pwrite(file, block, PAGE, at) == PAGE;
	}
	if (fsync(file))
		blocks = 0;
	close(file);
	snprintf(folder, sizeof folder, BLOCKS "/%.32s/device", name);
	say("{\"event\": \"disk\", \"address\": \"%s\", \"blocks\": %d, "
	    "\"before\": %d}",
	    text(folder, "address", address, sizeof address), blocks, before);
}

static void look_for_disks(void)
{
	static char used[8][32];
	static int count;
	struct dirent *entry;
	DIR *folder;
	int i;

	folder = opendir(BLOCKS);
	while (folder && (entry = readdir(folder))) {
		for (i = 0; i < count && strcmp(used[i], entry->d_name); i++)
			;
		if (strncmp(entry->d_name, "nvme", 4) || i < count || i == 8)
			continue;
		snprintf(used[count++], sizeof *used, "%.31s", entry->d_name);
		use_disk(entry->d_name);
	}
	if (folder)
		closedir(folder);
}

/* The document is base64. It is longer than a line of the console. */
static void read_document(void)
{
	char part[401];
	int file, got;

	file = open(DOCUMENT, O_RDONLY);
	if (file < 0)
		return;
	while ((got = read(file, part, sizeof part - 1)) > 0) {
		part[got] = 0;
		say("{\"event\": \"document\", \"text\": \"%s\"}", part);
	}
	close(file);
}

static int has(const struct function *list, int count,
	       const struct function *one)
{
	for (int i = 0; i < count; i++)
		if (list[i].inode == one->inode &&
		    !strcmp(list[i].address, one->address))
			return 1;
	return 0;
}

static void look(void)
{
	static struct function now[MOST];
	struct dirent **entries;
	int count = 0, found;

	found = scandir(FUNCTIONS, &entries, NULL, alphasort);
	for (int i = 0; i < found; i++) {
		if (entries[i]->d_name[0] != '.' && count < MOST) {
			snprintf(now[count].address, sizeof now->address,
				 "%.12s", entries[i]->d_name);
			now[count++].inode = entries[i]->d_ino;
		}
		free(entries[i]);
	}
	if (found >= 0)
		free(entries);
	for (int i = 0; i < known_count; i++)
		if (!has(now, count, &known[i]))
			say("{\"event\": \"gone\", \"address\": \"%s\"}",
			    known[i].address);
	for (int i = 0; i < count; i++)
		if (!has(known, known_count, &now[i]))
			came(now[i].address);
	memcpy(known, now, sizeof known);
	known_count = count;
}

static int buttons(struct pollfd *files, int most)
{
	char path[64];
	int count = 0;

	for (int i = 0; i < most; i++) {
		snprintf(path, sizeof path, "/dev/input/event%d", i);
		files[count].fd = open(path, O_RDONLY | O_NONBLOCK);
		files[count].events = POLLIN;
		if (files[count].fd >= 0)
			count++;
	}
	return count;
}

static void off_if_pressed(int file)
{
	struct input_event event;

	while (read(file, &event, sizeof event) == sizeof event)
		if (event.type == EV_KEY && event.code == KEY_POWER &&
		    event.value) {
			say("{\"event\": \"power\"}");
			sync();
			reboot(RB_POWER_OFF);
		}
}

int main(void)
{
	struct pollfd files[8];
	char boot[64];
	time_t spoken;
	int count, alive = 0;

	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mkdir("/dev", 0755);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("dev", "/dev", "devtmpfs", 0, NULL);
	say("{\"event\": \"start\", \"boot\": \"%s\"}",
	    text("/proc/sys/kernel/random", "boot_id", boot, sizeof boot));
	look();
	read_document();
	count = buttons(files, 8);
	say("{\"event\": \"ready\"}");
	spoken = time(NULL);
	for (;;) {
		if (poll(files, count, LOOK_MS) > 0)
			for (int i = 0; i < count; i++)
				off_if_pressed(files[i].fd);
		look();
		look_for_disks();
		if (time(NULL) - spoken >= ALIVE_S) {
			spoken = time(NULL);
			say("{\"event\": \"alive\", \"boot\": \"%s\", "
			    "\"count\": %d}", boot, ++alive);
		}
	}
}
