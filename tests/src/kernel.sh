# The first process of a machine with a kernel of its own (user-mode Linux), whose files are those of this machine: boots
# systemd as on any other, has alice log in and run a script, and turns the machine off.
#
# $1: folder of the programs under test   $2: number of the user alice   $3: empty
# $4: what makes the machine, up to the start of systemd   $5: folder of the script, and for what it says
mount -t proc none /proc
mount -t sysfs none /sys
mount -t cgroup2 none /sys/fs/cgroup
echo 0 >/proc/sys/kernel/printk
mount -t tmpfs none /mnt
cp "$5/script" /mnt/script
. "$4"

# The user manager may delegate all controllers, as an administrator would set it.
mkdir /run/units/user@.service.d
printf '[Service]\nDelegate=yes\n' >/run/units/user@.service.d/delegate.conf
mkdir /run/disk
# No commit comes by itself while a script runs.
mount -t ext4 -o commit=600 /dev/ubda /run/disk
chown "$2:$2" /run/disk
cat >/run/units/job.service <<EOF
[Unit]
Requires=ready.target
After=ready.target
[Service]
Type=oneshot
ExecStart=/bin/su -l alice -c 'PATH=/run/programs:\$PATH exec sh /mnt/script'
StandardOutput=file:/mnt/stdout
StandardError=file:/mnt/stderr
ExecStopPost=/bin/sh -c 'echo \$EXIT_STATUS >/mnt/code; umount /tmp; cp /mnt/* $5; sync; echo o >/proc/sysrq-trigger'
EOF
# A power cut: of the machine's disk nothing is flushed.
mkfifo -m 666 /run/cut
{
    read -r _ </run/cut
    echo 0 >/mnt/code
    umount -l /tmp
    cp /mnt/* "$5"
    sync -f "$5"
    echo o >/proc/sysrq-trigger
} &
exec /lib/systemd/systemd --system --unit=job.service --show-status=0
