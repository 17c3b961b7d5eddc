# Part of the scripts of the deb and of the rpm, which run it before the files of weir go away: afterwards no program on the
# host could undo what weir changed.
undo_everything() {
    if command -v systemctl >/dev/null; then
        # Stops them where systemd runs, and removes the links of `systemctl enable` in any case.
        if [ -d /run/systemd/system ]; then
            systemctl stop weir-export.service weir-serve.service weir-fastpath.service weir-publish.service weir-allow.service \
                weir-tune.service weir-lists.service weir-lists.timer 2>/dev/null || true
        fi
        systemctl --quiet disable weir-export.service weir-serve.service weir-fastpath.service weir-publish.service weir-allow.service \
            weir-tune.service weir-lists.timer 2>/dev/null || true
    fi
    # Without this folder weir changed nothing from here: in a chroot, the kernel's state belongs to the host around it.
    if [ -d /var/lib/weir ]; then
        for part in fastpath publish allow tune; do
            /usr/bin/weir "$part" remove >/dev/null || echo "weir: \`weir $part remove\` left something, see above" >&2
        done
    fi
}
