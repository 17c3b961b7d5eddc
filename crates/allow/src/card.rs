//! Network cards among a policy's interfaces.

use weir_sys::ProcRoot;

use crate::policy::Policy;

/// Suggests a cheaper setup, in words: a policy at tc that could be at XDP, if all its interfaces are network cards. It does not
/// know if their drivers support XDP. Weir does not switch by itself, because many drivers restart when a program is attached,
/// and lose packets meanwhile: perhaps those of the administrator's own connection.
pub fn hint(policy: &Policy, root: &ProcRoot) -> Option<String> {
    // Only what has hardware below it has this link.
    let is_card = |name: &String| root.path(&format!("sys/class/net/{name}/device")).exists();
    (policy.could_be_at_xdp() && policy.interfaces.iter().all(is_card)).then(|| {
        format!(
            "hint: {}: a network card whose driver has XDP filters before the kernel's stack and at less cost with --xdp (attaching it \
             may interrupt the link for a moment)",
            policy.interfaces.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Action, Backend, Xdp};
    use crate::verify::tests::policy;

    #[test]
    fn only_what_could_be_in_a_card_s_driver_is_hinted_at() {
        let folder = std::env::temp_dir().join(format!("weir-card-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sys/class/net/eth0/device")).unwrap();
        std::fs::create_dir_all(folder.join("sys/class/net/br0")).unwrap();
        let root = ProcRoot::new(&folder);
        let hinted = |change: &dyn Fn(&mut Policy)| {
            let mut policy = policy();
            (policy.backend, policy.interfaces) = (Backend::Bpf, vec!["eth0".into()]);
            change(&mut policy);
            hint(&policy, &root)
        };
        let said = hinted(&|_| {}).unwrap();
        assert!(said.starts_with("hint: eth0: ") && said.contains("--xdp"), "{said}");
        assert_eq!(hinted(&|p| p.backend = Backend::Nft), None);
        assert_eq!(hinted(&|p| p.interfaces.push("br0".into())), None);
        assert_eq!(hinted(&|p| p.xdp = Some(Xdp::Native)), None);
        assert_eq!(hinted(&|p| p.established_first = true), None);
        assert_eq!(hinted(&|p| p.rest = Action::Mark(7)), None);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
