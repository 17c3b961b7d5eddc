//! The settings in the doctor's JSON. The reader ignores everything else, so it understands a newer doctor's output as far as
//! this part stays the same.

use serde::Deserialize;

/// Largest file that is read; a diagnosis has some kilobytes.
pub const LARGEST: u64 = 64 << 20;

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Document {
    Diagnosis { findings: Vec<Finding> },
    List(Vec<Finding>),
}

/// A finding, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Finding {
    pub(crate) cause: String,
    /// Inode of its network namespace; 0: the machine as a whole.
    #[serde(default)]
    pub(crate) namespace: u64,
    #[serde(default)]
    pub(crate) place: String,
    #[serde(default)]
    confidence: String,
    #[serde(default)]
    fixes: Vec<Fix>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Fix {
    #[serde(default)]
    tune: Vec<FoundSetting>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct FoundSetting {
    pub(crate) name: String,
    pub(crate) proposed: String,
    #[serde(default)]
    pub(crate) why: String,
}

impl Finding {
    /// True if the finding alone is no reason to change a host.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.confidence == "low"
    }

    /// Returns the settings of the best fix that has any.
    pub(crate) fn settings(&self) -> &[FoundSetting] {
        self.fixes.iter().map(|f| f.tune.as_slice()).find(|t| !t.is_empty()).unwrap_or(&[])
    }
}

/// The findings of `weir doctor --json`; in words if it is none.
pub(crate) fn parse(text: &str) -> Result<Vec<Finding>, String> {
    match serde_json::from_str(text) {
        Ok(Document::Diagnosis { findings } | Document::List(findings)) => Ok(findings),
        Err(e) if e.is_syntax() || e.is_eof() => Err(format!("not JSON: {e}")),
        Err(_) => {
            Err("not the output of `weir doctor --json`: there are no findings with causes in it".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_doctor::finding::{Confidence, Fix as DoctorsFix, Setting as DoctorsSetting, Severity};

    /// The doctor's output is read here.
    #[test]
    fn the_doctors_findings_are_understood() {
        let finding = weir_doctor::finding::Finding {
            cause: "conntrack-full".into(),
            namespace: 42,
            place: "here".into(),
            severity: Severity::Critical,
            confidence: Confidence::Low,
            object: String::new(),
            summary: String::new(),
            evidence: Vec::new(),
            not: Vec::new(),
            missing: Vec::new(),
            claims: Vec::new(),
            impact: 0.0,
            fixes: vec![
                DoctorsFix::default(),
                DoctorsFix {
                    tune: vec![DoctorsSetting {
                        name: "net.netfilter.nf_conntrack_max".into(),
                        now: "1000".into(),
                        proposed: "4000".into(),
                        why: "it was full".into(),
                    }],
                    ..DoctorsFix::default()
                },
            ],
            explains_packets: 0,
            explains_ratio: 0.0,
        };
        for text in [
            serde_json::to_string(&[&finding]).unwrap(),
            serde_json::json!({ "version": 1, "window_s": 10.0, "findings": [finding] }).to_string(),
        ] {
            let found = parse(&text).unwrap();
            assert_eq!((found[0].namespace, found[0].is_doubtful()), (42, true));
            assert_eq!(found[0].settings()[0].proposed, "4000");
        }
    }

    #[test]
    fn what_is_no_diagnosis_is_refused() {
        for (text, words) in [
            ("", "not JSON"),
            ("{", "not JSON"),
            ("{}", "no findings"),
            ("[{}]", "no findings"),
            ("7", "no findings"),
        ] {
            assert!(parse(text).unwrap_err().contains(words), "{text}");
        }
        assert_eq!(parse("[]").unwrap(), []);
    }

    proptest::proptest! {
        #[test]
        fn garbage_never_panics(text in ".{0,200}") {
            let _ = parse(&text);
        }
    }
}
