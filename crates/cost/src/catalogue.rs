//! The known price options: the ones that ship with weir, and the user's own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, PriceOption};

/// The price files inside the binary, with the names under which their errors are reported.
const BUILT_IN: [(&str, &str); 4] = [
    ("prices/generic.toml", include_str!("../prices/generic.toml")),
    ("prices/aws.toml", include_str!("../prices/aws.toml")),
    ("prices/azure.toml", include_str!("../prices/azure.toml")),
    ("prices/gcp.toml", include_str!("../prices/gcp.toml")),
];

/// The options that are compared when none is named: a managed gateway and the VM that replaces it.
pub const DEFAULT_OPTIONS: [&str; 2] = ["managed-gateway", "nat-instance"];

/// A price file: `[[option]]` tables.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Sheet {
    /// The options.
    #[serde(default)]
    option: Vec<PriceOption>,
}

/// Price options by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalogue {
    options: Vec<PriceOption>,
}

impl Catalogue {
    /// The prices that ship with weir. They carry source and date, and go out of date: check them.
    ///
    /// # Errors
    /// Never in a released weir: a test reads every file.
    pub fn built_in() -> Result<Self, Error> {
        let mut catalogue = Catalogue { options: Vec::new() };
        for (origin, text) in BUILT_IN {
            catalogue.add_toml(origin, text)?;
        }
        Ok(catalogue)
    }

    /// Adds the options of a price file; one whose name is known replaces that option as a whole. `origin` is the
    /// file's name, for messages.
    ///
    /// # Errors
    /// When the text is no price file, or has one name twice. Nothing is added then.
    pub fn add_toml(&mut self, origin: &str, text: &str) -> Result<(), Error> {
        let sheet: Sheet = toml_edit::de::from_str(text).map_err(|e| Error::Syntax {
            origin: origin.to_owned(),
            message: e.to_string().trim().to_owned(),
        })?;
        self.add(origin, &sheet.option)
    }

    /// Adds options that were read elsewhere, such as `[[cost.option]]` of a scenario; `origin` is the file's name,
    /// for messages.
    ///
    /// # Errors
    /// When an option's keys do not fit together, or a name is there twice. Nothing is added then.
    pub fn add(&mut self, origin: &str, options: &[PriceOption]) -> Result<(), Error> {
        for (i, option) in options.iter().enumerate() {
            if let Some(problem) = option.problem() {
                return Err(Error::Option {
                    origin: origin.to_owned(),
                    option: option.name.clone(),
                    problem,
                });
            }
            if options[..i].iter().any(|o| o.name == option.name) {
                return Err(Error::Twice { name: option.name.clone() });
            }
        }
        for option in options {
            match self.options.iter_mut().find(|o| o.name == option.name) {
                Some(known) => *known = option.clone(),
                None => self.options.push(option.clone()),
            }
        }
        Ok(())
    }

    /// Every option, in the order of the files.
    pub fn options(&self) -> &[PriceOption] {
        &self.options
    }

    /// The options of these names, in this order.
    ///
    /// # Errors
    /// When a name is not known; the message has the nearest one.
    pub fn select<S: AsRef<str>>(&self, names: &[S]) -> Result<Vec<PriceOption>, Error> {
        names
            .iter()
            .map(|name| {
                let name = name.as_ref();
                self.options.iter().find(|o| o.name == name).cloned().ok_or_else(|| Error::Unknown {
                    name: name.to_owned(),
                    known: self.options.iter().map(|o| o.name.clone()).collect(),
                })
            })
            .collect()
    }
}
