//! Settings of the whole machine (sysctls that no namespace has for itself): those of the run, and those of single variants.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use weir_agent::transport::{Options, Transport};
use weir_agent::{Remote, Task};

use crate::SHORT;
use crate::error::Error;
use crate::scenario::VariantRun;

/// Values by dotted name.
type Values = BTreeMap<String, String>;

/// Keeps the machine's settings changed. An agent that does nothing else makes the changes: it takes them back when its input
/// ends, which is also what `kill -9` of the runner does.
#[derive(Debug)]
pub(crate) struct Settings {
    keeper: Option<Remote>,
    common: Values,
    now: Mutex<Values>,
}

impl Settings {
    /// Returns settings that change nothing.
    pub(crate) fn none() -> Self {
        Settings { keeper: None, common: Values::new(), now: Mutex::default() }
    }

    /// Sets the values for the whole run. The agent runs on `host`, reached by `transport`.
    pub(crate) fn hold(
        common: &Values,
        variants: &[VariantRun],
        host: &str,
        transport: &Transport,
        options: &Options,
    ) -> Result<Self, Error> {
        if common.is_empty() && variants.iter().all(|v| v.host_sysctls.is_empty()) {
            return Ok(Settings::none());
        }
        let keeper = Some(Remote::start(host, transport, options)?);
        let settings = Settings { keeper, common: common.clone(), now: Mutex::default() };
        settings.set(common.clone())?;
        Ok(settings)
    }

    /// Sets the values for a variant's trial: the run's values, overridden by the variant's own.
    pub(crate) fn of(&self, variant: &VariantRun) -> Result<(), Error> {
        let mut values = self.common.clone();
        values.extend(variant.host_sysctls.clone());
        self.set(values)
    }

    fn set(&self, values: Values) -> Result<(), Error> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keeper) = self.keeper.as_ref().filter(|_| *now != values) {
            // The same task reverts the earlier changes.
            keeper.call(Task::HostSysctls { values: values.clone() }, SHORT)?;
            *now = values;
        }
        Ok(())
    }
}
