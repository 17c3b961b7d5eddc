//! The files that make confirmed settings last: `/etc/sysctl.d/90-weir.conf`, which is weir's as a whole, and where the settings
//! belong to a module, `/etc/modules-load.d/90-weir.conf`, because sysctl.d is read before a rule loads the module.

use std::collections::BTreeMap;
use std::path::PathBuf;

use weir_sys::ProcRoot;

use weir_sys::sysctl::path_of;

/// Settings.
const SYSCTL: &str = "/etc/sysctl.d/90-weir.conf";
/// Modules that must be there before them.
const MODULES: &str = "/etc/modules-load.d/90-weir.conf";
const HEAD: &str = "# Written by `weir tune confirm`, and replaced as a whole by the next one. `weir tune rollback` \
                    reverts\n# the last change.\n";
/// Folders of settings, the later one's file of a name hiding the earlier one's (sysctl.d(5)).
const FOLDERS: [&str; 4] = ["usr/lib/sysctl.d", "lib/sysctl.d", "run/sysctl.d", "etc/sysctl.d"];

/// The settings of a sysctl.d file, in the order in which they stand there. Names may be written with slashes.
fn parse(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().map(str::trim).filter(|l| !l.starts_with(['#', ';']));
    let pairs = lines.filter_map(|l| l.trim_start_matches('-').split_once('='));
    pairs
        .map(|(name, value)| (path_of(name.trim()), value.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect()
}

/// The files with these settings and those that were confirmed before, and what is missing here to keep them.
pub(crate) fn files(root: &ProcRoot, settings: &[(String, String)]) -> (Vec<(PathBuf, String)>, Vec<String>) {
    let folder = |path: &str| root.path(path).parent().is_some_and(std::path::Path::is_dir);
    if !folder(SYSCTL) {
        return (Vec::new(), vec!["there is no /etc/sysctl.d: the values hold until the next reboot".into()]);
    }
    // By path, so that two ways to write a name are one.
    let mut all: BTreeMap<String, (String, String)> = BTreeMap::new();
    let before = root.read(SYSCTL).unwrap_or_default();
    for line in before.lines().map(str::trim).filter(|l| !l.starts_with(['#', ';'])) {
        if let Some((name, value)) = line.split_once('=') {
            let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
            all.insert(path_of(name.trim()), (name.trim().to_owned(), value));
        }
    }
    for (name, value) in settings {
        all.insert(path_of(name), (name.clone(), value.clone()));
    }
    let lines: String = all.values().map(|(name, value)| format!("{name} = {value}\n")).collect();
    let mut files = vec![(PathBuf::from(SYSCTL), format!("{HEAD}{lines}"))];
    let mut missing = Vec::new();
    let needs_module = all.keys().any(|path| path.contains("/nf_conntrack_"));
    // A module has its state there; what is built in has not.
    let is_module = root.path("sys/module/nf_conntrack/initstate").exists();
    if needs_module && is_module {
        if folder(MODULES) {
            files.push((PathBuf::from(MODULES), format!("{HEAD}nf_conntrack\n")));
        } else {
            missing.push("there is no /etc/modules-load.d: load nf_conntrack before /etc/sysctl.d is read, or its settings are lost at boot".into());
        }
    }
    (files, missing)
}

/// The file that sets the name to something else after ours when the machine starts. Files are read in the order of their names,
/// whatever folder they are in, and /etc/sysctl.conf last (sysctl.d(5), procps).
pub(crate) fn overridden_by(root: &ProcRoot, name: &str, value: &str) -> Option<String> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for folder in FOLDERS {
        for entry in std::fs::read_dir(root.path(folder)).into_iter().flatten().flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            if file.ends_with(".conf") {
                files.insert(file.clone(), format!("{folder}/{file}"));
            }
        }
    }
    let after = files.into_iter().filter(|(file, _)| file.as_str() > "90-weir.conf").map(|(_, path)| path);
    let mut last = None;
    for path in after.chain(["etc/sysctl.conf".to_owned()]) {
        let Ok(text) = root.read(&path) else { continue };
        if let Some((_, found)) = parse(&text).into_iter().rfind(|(p, _)| *p == path_of(name)) {
            last = Some((path, found));
        }
    }
    last.filter(|(_, found)| found != value).map(|(path, found)| format!("/{path} sets it to {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_testkit::Files;

    fn setting(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn earlier_settings_stay_and_the_same_ones_are_replaced() {
        let before = "# x\nnet.ipv4.tcp_rmem = 4096\t131072  6291456\nnet/core/somaxconn=100\n";
        let root = Files::new(&[("etc/sysctl.d/90-weir.conf", before)]);
        let new = [setting("net.core.somaxconn", "4096"), setting("net.ipv4.conf.eth0/1.rp_filter", "2")];
        let (files, missing) = files(&root.root(), &new);
        assert_eq!((files.len(), missing.len()), (1, 0));
        let lines: Vec<&str> = files[0].1.lines().filter(|l| !l.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "net.core.somaxconn = 4096",
                "net.ipv4.conf.eth0/1.rp_filter = 2",
                "net.ipv4.tcp_rmem = 4096 131072 6291456"
            ]
        );
        // The output goes in again unchanged.
        root.put("etc/sysctl.d/90-weir.conf", &files[0].1);
        assert_eq!(super::files(&root.root(), &new).0, files);
    }

    #[test]
    fn settings_of_a_module_have_it_loaded_first() {
        let module = ("sys/module/nf_conntrack/initstate", "live\n");
        let max = [setting("net.netfilter.nf_conntrack_max", "1")];
        let both = Files::new(&[module, ("etc/sysctl.d/x", ""), ("etc/modules-load.d/x", "")]);
        let (files, _) = files(&both.root(), &max);
        assert_eq!(files[1].0.to_str(), Some("/etc/modules-load.d/90-weir.conf"));
        assert!(files[1].1.ends_with("\nnf_conntrack\n"));
        let no_folder = Files::new(&[module, ("etc/sysctl.d/x", "")]);
        assert!(super::files(&no_folder.root(), &max).1[0].contains("modules-load.d"));
        let built_in = Files::new(&[("etc/sysctl.d/x", ""), ("etc/modules-load.d/x", "")]);
        assert_eq!(super::files(&built_in.root(), &max).0.len(), 1);
        let nothing = Files::new(&[module]);
        assert!(super::files(&nothing.root(), &max).1[0].contains("next reboot"));
    }

    #[test]
    fn a_later_file_that_says_otherwise_is_named() {
        let files = [
            ("etc/sysctl.d/10-first.conf", "net.core.somaxconn = 1\n"),
            ("usr/lib/sysctl.d/95-late.conf", "-net.core.somaxconn = 2\nnet.core.rmem_max=7\n"),
            ("etc/sysctl.conf", "net/core/wmem_max = 3\n; net.core.rmem_max = 9\n"),
        ];
        let root = Files::new(&files);
        let told = |name: &str, value: &str| overridden_by(&root.root(), name, value);
        assert_eq!(
            told("net.core.somaxconn", "4").as_deref(),
            Some("/usr/lib/sysctl.d/95-late.conf sets it to 2")
        );
        assert_eq!(told("net.core.somaxconn", "2"), None);
        assert_eq!(told("net.core.rmem_max", "7"), None);
        assert_eq!(told("net.core.wmem_max", "4").as_deref(), Some("/etc/sysctl.conf sets it to 3"));
        assert_eq!(told("net.core.netdev_budget", "4"), None);
    }
}
