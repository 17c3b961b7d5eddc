# Part of the scripts of the deb (purge) and of the rpm (erase): files that weir wrote, none of which a package owns.
forget_everything() {
    rm -rf /var/lib/weir /var/cache/weir /run/weir /etc/weir
    rm -f /etc/sysctl.d/90-weir.conf /etc/modules-load.d/90-weir.conf
}
