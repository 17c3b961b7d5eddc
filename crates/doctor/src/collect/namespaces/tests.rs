use weir_sys::privilege::test_needs_root;

use super::*;
use weir_testkit::Files;

/// A recorded `/proc` of processes: pid, namespace, control group.
fn recorded(processes: &[(u32, u64, &str, &str)], mounts: &str) -> Files {
    let files = Files::new(&[("proc/self/mountinfo", mounts)]);
    for (pid, inode, comm, cgroup) in processes {
        files.link(&format!("proc/{pid}/ns/net"), &format!("net:[{inode}]"));
        files.put(&format!("proc/{pid}/comm"), &format!("{comm}\n"));
        files.put(&format!("proc/{pid}/cgroup"), &format!("0::{cgroup}\n"));
    }
    files
}

fn names(found: &[Found]) -> Vec<(u64, &str)> {
    found.iter().filter(|f| !f.own).map(|f| (f.id, f.name.as_str())).collect()
}

#[test]
fn names_are_those_that_people_use() {
    let web = "ab".repeat(32);
    let cart = "cd".repeat(32);
    let mail = "ef".repeat(32);
    let processes = [
        (1, 100, "systemd", "/init.scope".to_owned()),
        (20, 100, "sshd", "/system.slice/ssh.service".into()),
        // Entered from outside before the container's own process has this number.
        (30, 200, "nsenter", "/user.slice".into()),
        (31, 200, "nginx", format!("/system.slice/docker-{web}.scope")),
        (40, 300, "cart", format!("/kubepods.slice/cri-containerd-{cart}.scope")),
        (45, 350, "pause", format!("/kubepods/besteffort/pod7/{mail}")),
        (50, 400, "iperf3", "/user.slice".into()),
        (60, 500, "\x1b[31mred", "/user.slice".into()),
        (70, 800, "exe", "/user.slice".into()),
    ];
    let processes: Vec<_> = processes.iter().map(|(p, n, c, g)| (*p, *n, *c, g.as_str())).collect();
    let mounts = "97 25 0:4 net:[400] /run/netns/blue rw shared:20 - nsfs nsfs rw\n\
                  98 25 0:4 net:[300] /run/netns/cni-1234 rw - nsfs nsfs rw\n\
                  99 25 0:4 net:[600] /run/netns/with\\040space rw - nsfs nsfs rw\n\
                  95 25 0:4 net:[700] /run/docker/netns/default rw - nsfs nsfs rw\n\
                  96 25 0:4 mnt:[4026532300] /run/snapd/ns/x.mnt rw - nsfs nsfs rw\n\
                  garbage\n";
    let files = recorded(&processes, mounts);
    files.link("proc/70/exe", "/usr/bin/weir");
    let config = format!("var/lib/docker/containers/{web}/config.v2.json");
    files.put(&config, r#"{"Name":"/web","ID":"x"}"#);
    let annotations = r#"{"annotations":{"io.kubernetes.cri.sandbox-name":"cart-7d9f","io.kubernetes.cri.sandbox-namespace":"shop"}}"#;
    files
        .put(&format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{cart}/config.json"), annotations);
    // As a pod sees it that shares the processes of its node.
    files.put(
        &format!("proc/1/root/run/containerd/io.containerd.runtime.v2.task/k8s.io/{mail}/config.json"),
        &annotations.replace("cart-7d9f", "mail-0"),
    );
    let found = find(&files.root(), &Scope::Machine).unwrap();
    let bound = files.path().join("run/docker/netns/default").display().to_string();
    let mut wanted = vec![
        (100, "host"),
        // Unchanged: the printer cleans it.
        (500, "\x1b[31mred (pid 60)"),
        (800, "weir (pid 70)"),
        (200, "docker web"),
        (400, "netns blue"),
        (600, "netns with space"),
        (300, "pod shop/cart-7d9f"),
        (350, "pod shop/mail-0"),
    ];
    // The place of this path in the order depends on the folder.
    wanted.push((700, &bound));
    wanted[1..].sort_by_key(|(_, name)| *name);
    assert_eq!(names(&found), wanted);
    // Nothing of it can be entered: each says why.
    assert!(found.iter().filter(|f| !f.own).all(|f| f.handle.is_none() && f.shut.is_some()));
}

#[test]
fn root_namespaces_of_processes_names_and_descriptors_are_found() {
    if test_needs_root() {
        return;
    }
    let held = NetNs::create().unwrap();
    let entered = NetNs::create().unwrap();
    let mut command = std::process::Command::new("cat");
    command.stdin(std::process::Stdio::piped());
    entered.enter_on_spawn(&mut command);
    let mut child = command.spawn().unwrap();
    let found = find(&ProcRoot::default(), &Scope::Machine).unwrap();
    let pid = child.id();
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(found[0].own && found[0].handle.is_none());
    assert_eq!(found.iter().filter(|f| f.own).count(), 1);
    let by_id = |ns: &NetNs| found.iter().find(|f| f.id == ns.inode().unwrap()).unwrap();
    let (held_found, entered_found) = (by_id(&held), by_id(&entered));
    assert!(held_found.name.starts_with("held by "), "{}", held_found.name);
    assert!(held_found.name.contains(&format!("(pid {}, ", std::process::id())), "{}", held_found.name);
    assert_eq!(entered_found.name, format!("cat (pid {pid})"));
    for (found, ns) in [(held_found, &held), (entered_found, &entered)] {
        let inside =
            found.handle.as_ref().unwrap().run(|| NetNs::current().unwrap().inode().unwrap()).unwrap();
        assert_eq!(inside, ns.inode().unwrap());
    }
}
