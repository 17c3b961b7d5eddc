//! A `run.json` as anybody would read it: as JSON, not with weir's own types.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A record that was read.
#[derive(Debug)]
pub struct Record {
    /// The whole of it.
    pub json: Value,
    /// Folder that it was in.
    pub folder: PathBuf,
}

impl Record {
    /// Reads the one in a run's folder.
    #[track_caller]
    pub fn read(folder: impl AsRef<Path>) -> Self {
        let folder = folder.as_ref().to_owned();
        let path = folder.join("run.json");
        let text = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let json = serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Record { json, folder }
    }

    /// How the run ended: `precise`, `rounds-done`, `interrupted`, `failed`, ...
    pub fn state(&self) -> &str {
        self.json["status"]["state"].as_str().unwrap()
    }

    /// Trials that count, of one cell or of all.
    pub fn valid_trials(&self) -> Vec<&Value> {
        let void = |t: &Value| t["faults"].as_array().unwrap().iter().any(|f| f["void"] == true);
        self.json["trials"].as_array().unwrap().iter().filter(|t| !void(t)).collect()
    }

    /// Codes of the faults of all trials, in order.
    pub fn faults(&self) -> Vec<String> {
        let trials = self.json["trials"].as_array().unwrap();
        let faults = trials.iter().flat_map(|t| t["faults"].as_array().unwrap());
        faults.map(|f| f["code"].as_str().unwrap().to_owned()).collect()
    }
}
