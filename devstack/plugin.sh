# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154  # DevStack and settings set them.
# DevStack sources this file with a mode and a phase.

# Put the driver into DevStack's Nova.
#
# DevStack installs Nova from its clone, in editable mode. pip installs the
# driver into site-packages/nova. That directory would hide the clone, and
# nothing could import Nova. So the driver is a link in the clone.
function link_nova_accel_driver {
    local site
    # Not in the current directory, which may have a package of this name.
    site=$(cd / && "$PYTHON" -c \
        'import nova_accel, os; print(os.path.dirname(nova_accel.__path__[0]))')
    if [[ -e "$site/nova/__init__.py" ]]; then
        # Nova is there as well.
        return
    fi
    sudo rm -rf "$site/nova/virt/accel"
    sudo rmdir "$site/nova/virt" "$site/nova"
    ln -sfn "$NOVA_ACCEL_DIR/nova_accel/shim" "$NOVA_DIR/nova/virt/accel"
}

function install_nova_accel {
    # Not setup_develop: in editable mode, too, nova_accel would hide Nova.
    setup_install "$NOVA_ACCEL_DIR" openstack
    link_nova_accel_driver
}

function configure_nova_accel_api {
    sudo install -d -o "$STACK_USER" "$NOVA_ACCEL_PROFILE_DIR"
    iniset "$NOVA_CONF" nova_accel profile_dirs "$NOVA_ACCEL_PROFILE_DIR"
}

function configure_nova_accel_scheduler {
    local filters weights
    if ! ini_has_option "$NOVA_CONF" filter_scheduler available_filters; then
        iniadd "$NOVA_CONF" filter_scheduler available_filters \
            nova.scheduler.filters.all_filters
    fi
    iniadd "$NOVA_CONF" filter_scheduler available_filters \
        nova_accel.scheduler.filter.AcceleratorFilter
    # Last: it comes after NUMATopologyFilter and PciPassthroughFilter.
    filters=$(iniget "$NOVA_CONF" filter_scheduler enabled_filters)
    iniset "$NOVA_CONF" filter_scheduler enabled_filters \
        "${filters:-$NOVA_FILTERS},AcceleratorFilter"
    weights=$(iniget "$NOVA_CONF" filter_scheduler weight_classes)
    weights=${weights:-nova.scheduler.weights.all_weighers}
    iniset "$NOVA_CONF" filter_scheduler weight_classes \
        "$weights,nova_accel.scheduler.weigher.AcceleratorWeigher"
}

# DevStack makes the nova-cpu.conf of nova-compute from nova.conf.
function configure_nova_accel_compute {
    iniset "$NOVA_CONF" DEFAULT compute_driver accel.LibvirtDriver
    if [[ -n "$NOVA_ACCEL_DEVICE_SPEC" ]]; then
        iniset "$NOVA_CONF" nova_accel device_spec "$NOVA_ACCEL_DEVICE_SPEC"
    fi
}

function configure_nova_accel {
    if is_service_enabled n-api; then
        configure_nova_accel_api
    fi
    if is_service_enabled n-sch; then
        configure_nova_accel_scheduler
    fi
    if is_service_enabled n-cpu; then
        configure_nova_accel_compute
    fi
}

case "$1/${2:-}" in
    stack/install)
        echo_summary "Installing nova-accel"
        install_nova_accel
        ;;
    stack/post-config)
        echo_summary "Configuring nova-accel"
        configure_nova_accel
        ;;
    clean/)
        rm -f "$NOVA_DIR/nova/virt/accel"
        ;;
esac
