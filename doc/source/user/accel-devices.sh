#!/bin/sh
# Usage: accel-devices.sh [GROUP]     print the PCI addresses of the devices
#        accel-devices.sh --nccl      install NCCL's topology file
set -eu
raw=${ACCEL_DOCUMENT:-/sys/firmware/qemu_fw_cfg/by_name/opt/org.openstack.nova-accel/devices/raw}
nccl=${ACCEL_NCCL:-/var/run/nvidia-topologyd/virtualTopology.xml}

[ -e "$raw" ] || modprobe qemu_fw_cfg 2>/dev/null || true
[ -e "$raw" ] || { echo "$0: this server has no document of devices" >&2; exit 1; }
text=$(base64 -d < "$raw") && [ "${text%'
}'}" != "$text" ] || {
    echo "$0: $raw cannot be read, or is incomplete; run this as root" >&2; exit 1; }
document() { printf '%s\n' "$text"; }

if [ "${1-}" = --nccl ]; then
    mkdir -p "$(dirname "$nccl")"
    document | sed -n 's/^ "ncclTopology": "\(.*\)"$/\1/p' |
        sed -e 's/\\"/"/g' -e 's/\\n/\
/g' > "$nccl.new"
    # An incomplete file would stop NCCL.
    chmod 644 "$nccl.new"
    if [ -s "$nccl.new" ]; then
        mv "$nccl.new" "$nccl"
    else
        rm -f "$nccl.new" "$nccl"
    fi
    exit
fi

found=$(document | awk -v wanted="${1-}" '
    /"attributes": [{]/ { group = ""; address = "" }
    /": [{]$/ { key = $1 }
    /"string": / { value = $2; gsub(/"/, "", value)
        if (key == "\"group\":") group = value
        if (key == "\"resource.kubernetes.io/pciBusID\":") address = value
        if (address && (wanted == "" || wanted == group)) {
            print address; address = ""
        }
    }')
[ -n "$found" ] || { echo "$0: no device is in a group ${1-}" >&2; exit 1; }
echo "$found"
