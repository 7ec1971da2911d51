# Makes a small machine out of new namespaces and becomes its systemd. Nothing of the real machine's configuration is
# in force: only the units that are copied here exist, and PAM asks nobody.
#
# $1: folder of the programs under test, for alice's PATH; empty for none   $2: number of the user alice
# $3: root of the machine's files, which are written; empty for those of the real machine, which are not
set -e
mount --make-rprivate /
umount -l /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
scratch="/tmp /var/log /var/lib/systemd /etc/systemd/system /etc/systemd/user"
if [ -n "$3" ]; then
    mount --bind "$3" "$3"
    cd "$3"
    mount -t proc none proc
    mount --rbind /sys sys
    mount --rbind /dev dev
    pivot_root . mnt
    umount -l /mnt
    cd /
    scratch=/tmp
fi
mount -t tmpfs -o mode=755 none /run
mkdir /run/programs /run/units /run/home
[ -z "$1" ] || mount --bind "$1" /run/programs
for folder in $scratch; do
    mount -t tmpfs -o mode=755 none "$folder"
done
chmod 1777 /tmp

mkdir -m 700 /run/home/alice
chown "$2:$2" /run/home/alice
cp /etc/passwd /etc/group /run
echo "alice:x:$2:$2::/run/home/alice:/bin/sh" >>/run/passwd
echo "alice:x:$2:" >>/run/group
mount --bind /run/passwd /etc/passwd
mount --bind /run/group /etc/group

mkdir /run/pam.d
for service in other su-l systemd-user; do
    for kind in auth account session; do
        echo "$kind required pam_permit.so"
    done >/run/pam.d/$service
done
echo "session required pam_systemd.so" >>/run/pam.d/systemd-user
echo "session required pam_systemd.so class=user" >>/run/pam.d/su-l
mount --bind /run/pam.d /etc/pam.d

for unit in user@.service user-runtime-dir@.service dbus.service dbus.socket systemd-logind.service user.slice \
    shutdown.target sysinit.target; do
    cp -L "/lib/systemd/system/$unit" /run/units
done
# What shuts logind in does not work inside every container.
sed -i -E '/^(PrivateTmp|Protect|Restrict|SystemCall|IPAddress|DeviceAllow|Memory|Lock|ReadWrite)/d' \
    /run/units/systemd-logind.service
ln -s systemd-logind.service /run/units/dbus-org.freedesktop.login1.service
printf '[Unit]\nRequires=dbus.socket systemd-logind.service\nAfter=dbus.socket systemd-logind.service\n' \
    >/run/units/ready.target
mkdir -p /run/systemd/logind.conf.d
printf '[Login]\nUserStopDelaySec=0\nKillUserProcesses=no\n' >/run/systemd/logind.conf.d/tests.conf

export container=tests SYSTEMD_UNIT_PATH=/run/units
exec /lib/systemd/systemd --system --unit=ready.target --show-status=0
