//! The mappings to put into the kernel, as stored for the process that loads them or rolls them back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Links, Mapping, Publish, Result};

/// Mappings of several containers behind one outer interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wanted {
    /// The interface that clients come in by; text from outside.
    pub outer: String,
    /// Its number.
    pub outer_index: u32,
    /// By the number of their link.
    pub containers: Vec<Container>,
}

/// A container with its mappings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Container {
    /// The host's end of its link; text from outside.
    pub link: String,
    /// Its number: a container that was started again has another one.
    pub index: u32,
    /// At least one.
    pub mappings: Vec<Mapping>,
}

impl Wanted {
    /// Its name: the same mappings at the same interfaces have the same one.
    pub fn id(&self) -> String {
        // Plain texts and numbers always have a JSON form.
        let text = serde_json::to_string(self).unwrap_or_default();
        weir_guard::fingerprint(&text)[..12].to_owned()
    }

    /// All mappings.
    pub fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.containers.iter().flat_map(|c| &c.mappings)
    }

    /// Memory that its tables take, by the kernel's own count, bytes. They are made for that and go again; nothing is attached.
    ///
    /// # Errors
    /// As for [`crate::load`], of which it is the first half.
    pub fn memory_bytes(&self) -> Result<u64> {
        let mut sum = 0;
        for container in &self.containers {
            let publish = Publish::load(&container.mappings, self.links(container)?)?;
            sum += publish.memory_bytes()?;
        }
        Ok(sum)
    }

    /// The interfaces of a container, if they are still those that were meant.
    pub(crate) fn links(&self, container: &Container) -> Result<Links> {
        let links = Links::find(&self.outer, &container.link)?;
        for (name, meant, found) in [
            (&self.outer, self.outer_index, links.outer),
            (&container.link, container.index, links.container),
        ] {
            if meant != found {
                let name = name.escape_default();
                return Err(Error::Link(format!(
                    "`{name}` is not the interface any more that it was: it was made anew"
                )));
            }
        }
        Ok(links)
    }
}
