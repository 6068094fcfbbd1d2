/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * An accelerator for QEMU that computes nothing. It is a PCIe function that
 * looks like any card to a host's kernel, libvirt and Nova.
 *
 *   -device accelerator,id=a100,vendor-id=0x10de,device-id=0x20b0,
 *           class-id=0x0302,serial=0xa100,total-vfs=16,memory-size=256M
 *
 * BAR 0, 64 KiB of registers, little-endian:
 *   0x00  magic       "FACC"
 *   0x04  ids         vendor << 16 | device
 *   0x08  function    0 for the PF, from 1 for a VF
 *   0x0c  serial
 *   0x10  resets      number of this function's resets since QEMU started
 *   0x14  logic       with dfl=on, a word in the programmed logic, which all
 *         functions share; it survives a reset, and programming clears it
 *   0x20  interrupt   write n: MSI-X vector n
 *   0x28  dma address (64 bits), 0x30 dma length, 0x34 dma command: 1 copies
 *         from the guest's memory to the scratch registers, 2 copies back;
 *         reads as 0 after success, else as 1
 *   0x100 scratch registers, to the end; a reset clears them
 * BAR 2: memory of a configurable size. The host only allocates pages that
 *   are written. A reset clears it.
 * BAR 4: MSI-X.
 *
 * With dfl=on the card is an FPGA as in the kernel's Documentation/fpga/
 * dfl.rst. BAR 0 has the management engine (FME), BAR 2 the port. A VF has its
 * own port in BAR 0. The registers above are in the last page of BAR 0.
 * Programming only sets the AFU's id, to the first 16 bytes that the kernel
 * pushes, and clears the word in the logic. Both survive a reset.
 *
 * QOM properties of the PF: "resets", "scratch" (the first scratch register),
 * "logic" and "stuck". While "stuck" is true, a function does not answer after
 * its next reset.
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include "qemu/madvise.h"
#include "qemu/module.h"
#include "qemu/units.h"
#include "qapi/error.h"
#include "qapi/visitor.h"
#include "hw/pci/msix.h"
#include "hw/pci/pci_device.h"
#include "hw/pci/pcie.h"
#include "hw/pci/pcie_sriov.h"
#include "hw/qdev-properties.h"
#include "hw/resettable.h"

#define TYPE_FUNCTION "accelerator-function"
#define TYPE_CARD "accelerator"
#define TYPE_VF "accelerator-vf"
OBJECT_DECLARE_SIMPLE_TYPE(Function, FUNCTION)
OBJECT_DECLARE_SIMPLE_TYPE(Card, CARD)

#define MAGIC 0x43434146
#define BAR0_SIZE (64 * KiB)
#define VECTORS 4

/* Offsets of the capabilities in configuration space. */
#define AT_PM 0x40
#define AT_MSIX 0x70
#define AT_EXPRESS 0xa0
#define AT_SERIAL 0x100
#define AT_ARI 0x150
#define AT_SRIOV 0x160

#define REG_LOGIC 0x14
#define REG_INTERRUPT 0x20
#define REG_DMA_ADDRESS 0x28
#define REG_DMA_LENGTH 0x30
#define REG_DMA_COMMAND 0x34
#define REG_SCRATCH 0x100

/* Device feature lists: drivers/fpga/dfl.h, dfl-fme-mgr.c. */
#define DFH_AFU 1ull
#define DFH_PRIVATE 3ull
#define DFH_FIU 4ull
#define ID_FME 0
#define ID_PORT 1
#define ID_PR 5
#define FME_CAP 0x30
#define FME_PORT_0 0x38
#define FME_BITSTREAM_ID 0x60
#define PR 0x1000
#define PR_CTRL (PR + 0x08)
#define PR_CTRL_RST (1ull << 0)
#define PR_CTRL_RST_ACK (1ull << 4)
#define PR_CTRL_START (1ull << 12)
#define PR_CTRL_COMPLETE (1ull << 13)
#define PR_STS (PR + 0x10)
#define PR_STS_CREDIT 0x1ffull
#define PR_STS_FAILED (1ull << 16)
#define PR_DATA (PR + 0x18)
#define PR_ERR (PR + 0x20)
#define PR_ERR_INCOMPATIBLE (1ull << 2)
#define PR_INTERFACE_ID 0x10a8
#define PORT_BAR_SIZE (512 * KiB)
#define PORT_NEXT_AFU 0x18
#define PORT_CAP 0x30
#define PORT_CTRL 0x38
#define PORT_CTRL_RST (1ull << 0)
#define PORT_CTRL_RST_ACK (1ull << 4)

/* A BAR of registers. Most read back what was written; some are commands. */
typedef struct Window {
    MemoryRegion region;
    Function *function;
    uint8_t *cells;
    size_t size;
    /* Offset of the AFU in the feature list, 0 without a port. */
    uint32_t afu;
    bool fme;
} Window;

struct Function {
    PCIDevice parent_obj;

    Window registers, port;
    MemoryRegion memory;
    uint64_t memory_size;
    /* Offset of the magic in BAR 0. */
    uint32_t base;
    uint32_t resets;
    bool answers_not;
};

struct Card {
    Function function;

    uint16_t vendor_id, device_id, subvendor_id, subdevice_id, class_id;
    uint16_t total_vfs, vf_device_id, vf_offset;
    uint8_t revision;
    uint32_t serial;
    uint64_t memory_size, vf_memory_size;
    bool flr, dfl, stuck;
    uint64_t bitstream_id, afu[2], interface_id[2];
    uint32_t logic;
    uint8_t pushed[16];
    uint32_t pushed_size;
};

static Card *card_of(Function *f)
{
    PCIDevice *pf = pcie_sriov_get_pf(PCI_DEVICE(f));

    return CARD(pf ? pf : PCI_DEVICE(f));
}

static bool is_vf(Function *f)
{
    return pci_is_vf(PCI_DEVICE(f));
}

/* The FPGA. */

static uint64_t header(uint64_t type, uint64_t id, uint64_t next)
{
    return type << 60 | (uint64_t)!next << 40 | next << 16 | id;
}

static void fill_afu(Window *w)
{
    Card *card = card_of(w->function);

    stq_le_p(w->cells + w->afu, header(DFH_AFU, 0, 0));
    stq_le_p(w->cells + w->afu + 0x08, card->afu[1]);
    stq_le_p(w->cells + w->afu + 0x10, card->afu[0]);
}

static void fill_port(Window *w)
{
    uint64_t kib = (w->size - w->afu) / KiB;

    stq_le_p(w->cells, header(DFH_FIU, ID_PORT, 0));
    stq_le_p(w->cells + PORT_NEXT_AFU, w->afu);
    stq_le_p(w->cells + PORT_CAP, kib << 8);
    fill_afu(w);
}

static void fill_fme(Window *w)
{
    Card *card = card_of(w->function);
    uint8_t *p = w->cells;

    stq_le_p(p, header(DFH_FIU, ID_FME, PR));
    /* One port, on PCIe. */
    stq_le_p(p + FME_CAP, 1ull << 17 | 1ull << 12);
    /* The port is implemented, at the beginning of BAR 2. */
    stq_le_p(p + FME_PORT_0, 1ull << 60 | 2ull << 32);
    stq_le_p(p + FME_BITSTREAM_ID, card->bitstream_id);
    stq_le_p(p + PR, header(DFH_PRIVATE, ID_PR, 0));
    stq_le_p(p + PR_STS, PR_STS_CREDIT);
    stq_le_p(p + PR_INTERFACE_ID, card->interface_id[0]);
    stq_le_p(p + PR_INTERFACE_ID + 8, card->interface_id[1]);
}

static void show_programmed(Card *card)
{
    fill_afu(&card->function.port);
    for (int i = 0; i < card->total_vfs; i++) {
        PCIDevice *vf = pcie_sriov_get_vf_at_index(PCI_DEVICE(card), i);

        if (vf) {
            fill_afu(&FUNCTION(vf)->registers);
        }
    }
}

static uint64_t program(Card *card, uint8_t *cells, uint64_t control)
{
    uint64_t failed = 0;

    if (control & PR_CTRL_RST) {
        card->pushed_size = 0;
        return control | PR_CTRL_RST_ACK;
    }
    control &= ~PR_CTRL_RST_ACK;
    if (!(control & PR_CTRL_COMPLETE)) {
        return control;
    }
    if (card->pushed_size == sizeof(card->pushed)) {
        card->afu[0] = ldq_be_p(card->pushed);
        card->afu[1] = ldq_be_p(card->pushed + 8);
        card->logic = 0;
        show_programmed(card);
    } else {
        failed = PR_STS_FAILED;
        stq_le_p(cells + PR_ERR, PR_ERR_INCOMPATIBLE);
    }
    stq_le_p(cells + PR_STS, PR_STS_CREDIT | failed);
    return control & ~(PR_CTRL_START | PR_CTRL_COMPLETE);
}

static void push(Card *card, uint32_t word)
{
    if (card->pushed_size < sizeof(card->pushed)) {
        stl_le_p(card->pushed + card->pushed_size, word);
        card->pushed_size += sizeof(word);
    }
}

static void written_to_fpga(Window *w, hwaddr address)
{
    Card *card = card_of(w->function);
    uint64_t value = ldq_le_p(w->cells + address);

    if (w->fme && address == PR_CTRL) {
        stq_le_p(w->cells + PR_CTRL, program(card, w->cells, value));
    } else if (w->fme && address == PR_DATA) {
        push(card, value);
    } else if (w->fme && address == PR_ERR) {
        /* The kernel clears error bits by writing them. */
        stq_le_p(w->cells + PR_ERR, 0);
        stq_le_p(w->cells + PR_STS, PR_STS_CREDIT);
    } else if (w->afu && address == PORT_CTRL) {
        value &= ~PORT_CTRL_RST_ACK;
        stq_le_p(w->cells + PORT_CTRL,
                 value & PORT_CTRL_RST ? value | PORT_CTRL_RST_ACK : value);
    }
}

/* Registers. */

static uint32_t transfer(Function *f, uint8_t *registers, uint32_t command)
{
    uint64_t address = ldq_le_p(registers + REG_DMA_ADDRESS);
    uint32_t length = ldl_le_p(registers + REG_DMA_LENGTH);
    void *scratch = registers + REG_SCRATCH;
    MemTxResult result = MEMTX_ERROR;

    if (length <= BAR0_SIZE - f->base - REG_SCRATCH) {
        if (command == 1) {
            result = pci_dma_read(PCI_DEVICE(f), address, scratch, length);
        } else if (command == 2) {
            result = pci_dma_write(PCI_DEVICE(f), address, scratch, length);
        }
    }
    return result != MEMTX_OK;
}

static void command(Function *f, uint8_t *registers, hwaddr at,
                    uint64_t value, unsigned size)
{
    switch (at) {
    case REG_LOGIC:
        if (card_of(f)->dfl) {
            card_of(f)->logic = value;
        }
        break;
    case REG_INTERRUPT:
        if (value < VECTORS) {
            msix_notify(PCI_DEVICE(f), value);
        }
        break;
    case REG_DMA_ADDRESS ... REG_DMA_COMMAND - 1:
        stn_le_p(registers + at, size, value);
        break;
    case REG_DMA_COMMAND:
        stl_le_p(registers + at, transfer(f, registers, value));
        break;
    }
}

static uint64_t window_read(void *opaque, hwaddr address, unsigned size)
{
    Window *w = opaque;
    Function *f = w->function;

    if (w == &f->registers && address == f->base + REG_LOGIC) {
        return card_of(f)->logic;
    }
    return ldn_le_p(w->cells + address, size);
}

static void window_write(void *opaque, hwaddr address, uint64_t value,
                         unsigned size)
{
    Window *w = opaque;
    Function *f = w->function;

    if (w == &f->registers && address >= f->base
        && address < f->base + REG_SCRATCH) {
        command(f, w->cells + f->base, address - f->base, value, size);
        return;
    }
    stn_le_p(w->cells + address, size, value);
    if (w->fme || w->afu) {
        written_to_fpga(w, address & ~7ull);
    }
}

static const MemoryRegionOps window_ops = {
    .read = window_read,
    .write = window_write,
    .endianness = DEVICE_LITTLE_ENDIAN,
    .valid = { .min_access_size = 1, .max_access_size = 8 },
    .impl = { .min_access_size = 1, .max_access_size = 8 },
};

static void window_init(Window *w, Function *f, const char *name, size_t size)
{
    w->function = f;
    w->size = size;
    w->cells = g_malloc0(size);
    memory_region_init_io(&w->region, OBJECT(f), &window_ops, w, name, size);
}

static void window_fill(Window *w)
{
    if (!w->cells) {
        return;
    }
    memset(w->cells, 0, w->size);
    if (w->fme) {
        fill_fme(w);
    } else if (w->afu) {
        fill_port(w);
    }
}

static void fill_identity(Function *f)
{
    Card *card = card_of(f);
    uint8_t *p = f->registers.cells + f->base;
    uint16_t device = is_vf(f) ? card->vf_device_id : card->device_id;
    uint32_t number = is_vf(f) ? pcie_sriov_vf_number(PCI_DEVICE(f)) + 1 : 0;

    stl_le_p(p + 0x00, MAGIC);
    stl_le_p(p + 0x04, (uint32_t)card->vendor_id << 16 | device);
    stl_le_p(p + 0x08, number);
    stl_le_p(p + 0x0c, card->serial);
    stl_le_p(p + 0x10, f->resets);
}

static void function_reset(Object *object, ResetType type)
{
    Function *f = FUNCTION(object);

    f->resets++;
    f->answers_not = card_of(f)->stuck;
    window_fill(&f->registers);
    window_fill(&f->port);
    fill_identity(f);
    if (f->memory_size) {
        /* The memory is private and anonymous: this clears it. */
        qemu_madvise(memory_region_get_ram_ptr(&f->memory), f->memory_size,
                     QEMU_MADV_DONTNEED);
    }
}

/* Configuration space. */

static uint32_t function_config_read(PCIDevice *dev, uint32_t address,
                                     int size)
{
    Function *f = FUNCTION(dev);

    if (f->answers_not && card_of(f)->stuck) {
        return UINT32_MAX;
    }
    return pci_default_read_config(dev, address, size);
}

static void function_config_write(PCIDevice *dev, uint32_t address,
                                  uint32_t value, int size)
{
    pci_default_write_config(dev, address, value, size);
    if (card_of(FUNCTION(dev))->flr) {
        pcie_cap_flr_write_config(dev, address, value, size);
    }
}

static void fill_config(Function *f)
{
    Card *card = card_of(f);
    uint8_t *config = PCI_DEVICE(f)->config;

    pci_config_set_vendor_id(config, card->vendor_id);
    pci_config_set_device_id(config, card->device_id);
    pci_config_set_class(config, card->class_id);
    pci_config_set_revision(config, card->revision);
    pci_set_word(config + PCI_SUBSYSTEM_VENDOR_ID, card->subvendor_id);
    pci_set_word(config + PCI_SUBSYSTEM_ID, card->subdevice_id);
}

static bool add_power_management(PCIDevice *dev, Error **errp)
{
    if (pci_pm_init(dev, AT_PM, errp) < 0) {
        return false;
    }
    pci_set_word(dev->config + AT_PM + PCI_PM_PMC, 3);
    /* Without this bit, the kernel would use D3hot as a reset. */
    pci_set_word(dev->config + AT_PM + PCI_PM_CTRL,
                 PCI_PM_CTRL_NO_SOFT_RESET);
    pci_set_word(dev->wmask + AT_PM + PCI_PM_CTRL, PCI_PM_CTRL_STATE_MASK);
    return true;
}

static bool add_capabilities(Function *f, Error **errp)
{
    PCIDevice *dev = PCI_DEVICE(f);

    if (!add_power_management(dev, errp)) {
        return false;
    }
    if (pcie_endpoint_cap_init(dev, AT_EXPRESS) < 0) {
        error_setg(errp, "accelerator: no room for the PCIe capability");
        return false;
    }
    if (card_of(f)->flr) {
        pcie_cap_flr_init(dev);
    }
    if (msix_init_exclusive_bar(dev, VECTORS, 4, errp)) {
        return false;
    }
    for (int i = 0; i < VECTORS; i++) {
        msix_vector_use(dev, i);
    }
    return true;
}

static bool add_memory(Function *f, Error **errp)
{
    PCIDevice *dev = PCI_DEVICE(f);
    Card *card = card_of(f);
    uint64_t size = is_vf(f) ? card->vf_memory_size : card->memory_size;

    if (!size) {
        return true;
    }
    if (!memory_region_init_ram_flags_nomigrate(&f->memory, OBJECT(f),
                                                "accelerator-memory", size,
                                                RAM_NORESERVE, errp)) {
        return false;
    }
    f->memory_size = size;
    pci_register_bar(dev, 2, PCI_BASE_ADDRESS_MEM_TYPE_64
                     | PCI_BASE_ADDRESS_MEM_PREFETCH, &f->memory);
    return true;
}

static void add_port(Function *f)
{
    window_init(&f->port, f, "accelerator-port", PORT_BAR_SIZE);
    f->port.afu = PORT_BAR_SIZE / 2;
    pci_register_bar(PCI_DEVICE(f), 2, PCI_BASE_ADDRESS_MEM_TYPE_64
                     | PCI_BASE_ADDRESS_MEM_PREFETCH, &f->port.region);
}

static bool add_bars(Function *f, Error **errp)
{
    PCIDevice *dev = PCI_DEVICE(f);

    window_init(&f->registers, f, "accelerator-registers", BAR0_SIZE);
    pci_register_bar(dev, 0, PCI_BASE_ADDRESS_SPACE_MEMORY,
                     &f->registers.region);
    if (!card_of(f)->dfl) {
        return add_memory(f, errp);
    }
    f->base = BAR0_SIZE - 4 * KiB;
    if (is_vf(f)) {
        f->registers.afu = BAR0_SIZE / 2;
    } else {
        f->registers.fme = true;
        add_port(f);
    }
    return true;
}

static bool function_realize(Function *f, Error **errp)
{
    fill_config(f);
    return add_bars(f, errp) && add_capabilities(f, errp);
}

static void vf_realize(PCIDevice *dev, Error **errp)
{
    if (function_realize(FUNCTION(dev), errp)) {
        pcie_ari_init(dev, AT_SERIAL);
    }
}

static void add_vfs(Card *card, Error **errp)
{
    PCIDevice *dev = PCI_DEVICE(card);

    if (!card->total_vfs || !pcie_sriov_pf_init(
            dev, AT_SRIOV, TYPE_VF, card->vf_device_id, card->total_vfs,
            card->total_vfs, card->vf_offset, 1, errp)) {
        return;
    }
    pcie_sriov_pf_init_vf_bar(dev, 0, PCI_BASE_ADDRESS_SPACE_MEMORY,
                              BAR0_SIZE);
    if (card->vf_memory_size && !card->dfl) {
        pcie_sriov_pf_init_vf_bar(dev, 2, PCI_BASE_ADDRESS_MEM_TYPE_64
                                  | PCI_BASE_ADDRESS_MEM_PREFETCH,
                                  card->vf_memory_size);
    }
    /* The same size as in msix_init_exclusive_bar. */
    pcie_sriov_pf_init_vf_bar(dev, 4, PCI_BASE_ADDRESS_SPACE_MEMORY, 4 * KiB);
}

static void get_scratch(Object *object, Visitor *v, const char *name,
                        void *opaque, Error **errp)
{
    Function *f = FUNCTION(object);
    uint32_t word = 0;

    if (f->registers.cells) {
        word = ldl_le_p(f->registers.cells + f->base + REG_SCRATCH);
    }
    visit_type_uint32(v, name, &word, errp);
}

static bool get_stuck(Object *object, Error **errp)
{
    return CARD(object)->stuck;
}

static void set_stuck(Object *object, bool value, Error **errp)
{
    CARD(object)->stuck = value;
}

static void card_realize(PCIDevice *dev, Error **errp)
{
    Card *card = CARD(dev);

    card->subvendor_id = card->subvendor_id ?: card->vendor_id;
    card->vf_device_id = card->vf_device_id ?: card->device_id;
    if (!function_realize(FUNCTION(dev), errp)) {
        return;
    }
    pci_config_set_interrupt_pin(dev->config, 1);
    pcie_dev_ser_num_init(dev, AT_SERIAL,
                          (uint64_t)card->vendor_id << 48 | card->serial);
    pcie_ari_init(dev, AT_ARI);
    add_vfs(card, errp);
}

static void function_exit(PCIDevice *dev)
{
    Function *f = FUNCTION(dev);

    pcie_sriov_pf_exit(dev);
    pcie_cap_exit(dev);
    msix_uninit_exclusive_bar(dev);
    g_clear_pointer(&f->registers.cells, g_free);
    g_clear_pointer(&f->port.cells, g_free);
}

static const Property card_properties[] = {
    DEFINE_PROP_UINT16("vendor-id", Card, vendor_id, 0x1234),
    DEFINE_PROP_UINT16("device-id", Card, device_id, 0xacce),
    DEFINE_PROP_UINT16("subvendor-id", Card, subvendor_id, 0),
    DEFINE_PROP_UINT16("subdevice-id", Card, subdevice_id, 1),
    DEFINE_PROP_UINT16("class-id", Card, class_id, 0x1200),
    DEFINE_PROP_UINT8("revision", Card, revision, 1),
    DEFINE_PROP_UINT32("serial", Card, serial, 1),
    DEFINE_PROP_SIZE("memory-size", Card, memory_size, 1 * MiB),
    DEFINE_PROP_BOOL("flr", Card, flr, true),
    DEFINE_PROP_UINT16("total-vfs", Card, total_vfs, 0),
    DEFINE_PROP_UINT16("vf-device-id", Card, vf_device_id, 0),
    DEFINE_PROP_UINT16("vf-offset", Card, vf_offset, 4),
    DEFINE_PROP_SIZE("vf-memory-size", Card, vf_memory_size, 256 * KiB),
    DEFINE_PROP_BOOL("dfl", Card, dfl, false),
    DEFINE_PROP_UINT64("bitstream-id", Card, bitstream_id, 0),
    DEFINE_PROP_UINT64("afu-high", Card, afu[0], 0),
    DEFINE_PROP_UINT64("afu-low", Card, afu[1], 0),
    DEFINE_PROP_UINT64("interface-low", Card, interface_id[0], 0),
    DEFINE_PROP_UINT64("interface-high", Card, interface_id[1], 0),
};

static void function_class_init(ObjectClass *class, void *data)
{
    PCIDeviceClass *pci = PCI_DEVICE_CLASS(class);

    pci->exit = function_exit;
    pci->config_read = function_config_read;
    pci->config_write = function_config_write;
    RESETTABLE_CLASS(class)->phases.hold = function_reset;
    set_bit(DEVICE_CATEGORY_MISC, DEVICE_CLASS(class)->categories);
}

static void card_class_init(ObjectClass *class, void *data)
{
    PCI_DEVICE_CLASS(class)->realize = card_realize;
    DEVICE_CLASS(class)->desc = "An accelerator that calculates nothing";
    device_class_set_props(DEVICE_CLASS(class), card_properties);
    object_class_property_add(class, "scratch", "uint32", get_scratch, NULL,
                              NULL, NULL);
    object_class_property_add_bool(class, "stuck", get_stuck, set_stuck);
}

static void card_init(Object *object)
{
    object_property_add_uint32_ptr(object, "resets",
                                   &FUNCTION(object)->resets,
                                   OBJ_PROP_FLAG_READ);
    object_property_add_uint32_ptr(object, "logic", &CARD(object)->logic,
                                   OBJ_PROP_FLAG_READ);
}

static void vf_class_init(ObjectClass *class, void *data)
{
    PCI_DEVICE_CLASS(class)->realize = vf_realize;
    DEVICE_CLASS(class)->user_creatable = false;
}

static const TypeInfo types[] = {
    {
        .name = TYPE_FUNCTION,
        .parent = TYPE_PCI_DEVICE,
        .abstract = true,
        .instance_size = sizeof(Function),
        .class_init = function_class_init,
        .interfaces = (InterfaceInfo[]) { { INTERFACE_PCIE_DEVICE }, { } },
    }, {
        .name = TYPE_CARD,
        .parent = TYPE_FUNCTION,
        .instance_size = sizeof(Card),
        .instance_init = card_init,
        .class_init = card_class_init,
    }, {
        .name = TYPE_VF,
        .parent = TYPE_FUNCTION,
        .instance_size = sizeof(Function),
        .class_init = vf_class_init,
    },
};

DEFINE_TYPES(types)
