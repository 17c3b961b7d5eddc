//! Which network namespaces there are, and what people call them.

use weir_sys::{NetNs, ProcRoot, Result};

use super::Scope;

/// A namespace to look at.
#[derive(Debug, Clone)]
pub struct Found {
    /// Inode.
    pub id: u64,
    /// Name; text from outside.
    pub name: String,
    /// The calling thread's.
    pub own: bool,
    /// The way in; `None` where one is in already.
    pub handle: Option<NetNs>,
}

/// Those of the scope.
pub(super) fn find(_root: &ProcRoot, scope: &Scope) -> Result<Vec<Found>> {
    let own = NetNs::current()?.inode()?;
    match scope {
        Scope::These(given) => {
            let found = |(name, handle): &(String, NetNs)| {
                let id = handle.inode()?;
                Ok(Found { id, name: name.clone(), own: id == own, handle: Some(handle.clone()) })
            };
            given.iter().map(found).collect()
        }
        Scope::Own | Scope::Machine => {
            Ok(vec![Found { id: own, name: "host".into(), own: true, handle: None }])
        }
    }
}
