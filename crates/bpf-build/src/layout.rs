//! A C header's structs and constants as Rust: one definition for the program in the kernel and for its driver.
//!
//! The supported syntax is small on purpose: `#define NAME NUMBER`, `enum name { A, B, };`, and `struct name { type field; type
//! field[N]; };` with the types `__u8 .. __u64`, `__s32`, `__s64`, `__be16`, `__be32` and earlier structs, without implicit
//! padding. A comment `/* .. */` or `// ..` before an item or a field becomes its doc comment.

use std::collections::BTreeMap;
use std::fmt::Write;

/// One field.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    doc: String,
    name: String,
    kind: String,
    count: Option<String>,
    offset: usize,
}

/// One struct.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Struct {
    doc: String,
    name: String,
    fields: Vec<Field>,
    size: usize,
    align: usize,
}

/// The items of a header, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    constants: Vec<(String, String, u64)>,
    structs: Vec<Struct>,
}

/// Reads a header.
///
/// # Errors
/// The unsupported syntax, with its line.
pub fn read(text: &str) -> Result<Layout, String> {
    let mut layout = Layout::default();
    let mut doc: Vec<String> = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        let line = line.trim();
        let at = |what: &str| format!("line {}: {what}: `{line}`", number + 1);
        if let Some(comment) = comment(line) {
            doc.push(comment);
            continue;
        }
        let words = std::mem::take(&mut doc).join(" ");
        if let Some(rest) = line.strip_prefix("#define ") {
            let mut parts = rest.split_whitespace();
            if let (Some(name), Some(value)) = (parts.next(), parts.next()) {
                let value = number_of(value, &layout).ok_or_else(|| at("not a number"))?;
                layout.constants.push((words, name.to_owned(), value));
            }
        } else if line.starts_with("enum ") && line.ends_with('{') {
            let mut next = 0;
            for (_, line) in lines.by_ref() {
                let line = line.trim();
                if line == "};" {
                    break;
                }
                if let Some(comment) = comment(line) {
                    doc.push(comment);
                    continue;
                }
                let (item, value) =
                    line.trim_end_matches(',').split_once('=').unwrap_or((line.trim_end_matches(','), ""));
                if !value.is_empty() {
                    next = number_of(value.trim(), &layout).ok_or_else(|| at("not a number"))?;
                }
                layout.constants.push((std::mem::take(&mut doc).join(" "), item.trim().to_owned(), next));
                next += 1;
            }
        } else if let Some(name) = line.strip_prefix("struct ").and_then(|l| l.strip_suffix(" {")) {
            let mut fields = Vec::new();
            for (number, line) in lines.by_ref() {
                let line = line.trim();
                if line == "};" {
                    break;
                }
                match comment(line) {
                    Some(comment) => doc.push(comment),
                    None if line.is_empty() => {}
                    None => fields.push(
                        field(line, std::mem::take(&mut doc).join(" "))
                            .ok_or_else(|| format!("line {}: not a field: `{line}`", number + 1))?,
                    ),
                }
            }
            let made = layout.place(name.to_owned(), words, fields)?;
            layout.structs.push(made);
        } else if !line.is_empty() && !line.starts_with('#') {
            return Err(at("not understood"));
        }
    }
    Ok(layout)
}

/// The text of a comment that is alone on its line.
fn comment(line: &str) -> Option<String> {
    let text =
        line.strip_prefix("//").or_else(|| line.strip_prefix("/*")).or_else(|| line.strip_prefix("* "))?;
    Some(text.trim_end_matches("*/").trim().to_owned())
}

fn field(line: &str, doc: String) -> Option<Field> {
    let (kind, name) = line.strip_suffix(';')?.rsplit_once(' ')?;
    let (name, count) = match name.strip_suffix(']').and_then(|n| n.split_once('[')) {
        Some((name, count)) => (name, Some(count.to_owned())),
        None => (name, None),
    };
    let kind = kind.trim_start_matches("struct ").to_owned();
    Some(Field { doc, name: name.to_owned(), kind, count, offset: 0 })
}

fn number_of(text: &str, layout: &Layout) -> Option<u64> {
    let text = text.trim_matches(|c| c == '(' || c == ')');
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    if let Some(hex) = digits.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    digits.parse().ok().or_else(|| layout.constants.iter().find(|(_, n, _)| n == text).map(|(_, _, v)| *v))
}

impl Layout {
    /// Size and alignment of a type (the System V ABI's, which BPF has too).
    fn size_of(&self, kind: &str) -> Option<(usize, usize)> {
        let known = BTreeMap::from([
            ("__u8", 1),
            ("__u16", 2),
            ("__be16", 2),
            ("__u32", 4),
            ("__s32", 4),
            ("__be32", 4),
            ("__u64", 8),
            ("__s64", 8),
        ]);
        known
            .get(kind)
            .map(|size| (*size, *size))
            .or_else(|| self.structs.iter().find(|s| s.name == kind).map(|s| (s.size, s.align)))
    }

    fn place(&self, name: String, doc: String, mut fields: Vec<Field>) -> Result<Struct, String> {
        let (mut end, mut align) = (0, 1);
        for field in &mut fields {
            let (size, alignment) =
                self.size_of(&field.kind).ok_or_else(|| format!("{name}: unknown type `{}`", field.kind))?;
            let count = match &field.count {
                Some(count) => {
                    number_of(count, self).ok_or_else(|| format!("{name}: unknown length `{count}`"))?
                }
                None => 1,
            };
            if end % alignment != 0 {
                return Err(format!("{name}.{}: would be padded; name the padding", field.name));
            }
            field.offset = end;
            end += size * count as usize;
            align = align.max(alignment);
        }
        if end % align != 0 {
            return Err(format!("{name}: would be padded at its end; name the padding"));
        }
        Ok(Struct { doc, name, fields, size: end, align })
    }

    /// The Rust of it.
    pub fn to_rust(&self) -> String {
        let mut text = String::new();
        for (doc, name, value) in &self.constants {
            let _ = writeln!(text, "/// {}\npub const {name}: u64 = {value};", or_name(doc, name));
        }
        for s in &self.structs {
            let rust = camel(&s.name);
            let _ = writeln!(
                text,
                "/// {}\n#[repr(C)]\n#[derive(Debug, Clone, Copy, PartialEq, Eq)]\npub struct {rust} {{",
                or_name(&s.doc, &s.name)
            );
            for f in &s.fields {
                let kind = rust_type(&f.kind);
                let kind = match &f.count {
                    Some(count) if count.parse::<usize>().is_ok() => format!("[{kind}; {count}]"),
                    Some(count) => format!("[{kind}; {count} as usize]"),
                    None => kind,
                };
                let _ = writeln!(text, "    /// {}\n    pub {}: {kind},", or_name(&f.doc, &f.name), f.name);
            }
            let _ = writeln!(text, "}}\nconst _: () = assert!(size_of::<{rust}>() == {});", s.size);
            for f in &s.fields {
                let _ = writeln!(
                    text,
                    "const _: () = assert!(std::mem::offset_of!({rust}, {}) == {});",
                    f.name, f.offset
                );
            }
            let _ = writeln!(
                text,
                "#[expect(unsafe_code, reason = \"plain integers without padding, as asserted above\")]\n// SAFETY: integers and arrays of them, without padding: every bit pattern is a value.\nunsafe impl weir_bpf::Plain for {rust} {{}}"
            );
        }
        text
    }

    /// Assertions for C that the compiler of the BPF program lays the structs out in the same way.
    pub fn to_c_assertions(&self) -> String {
        let mut text = String::new();
        for s in &self.structs {
            let _ = writeln!(text, "_Static_assert(sizeof(struct {0}) == {1}, \"{0}\");", s.name, s.size);
            for f in &s.fields {
                let _ = writeln!(
                    text,
                    "_Static_assert(__builtin_offsetof(struct {0}, {1}) == {2}, \"{0}.{1}\");",
                    s.name, f.name, f.offset
                );
            }
        }
        text
    }
}

fn or_name(doc: &str, name: &str) -> String {
    if doc.is_empty() { format!("`{name}`.") } else { doc.to_owned() }
}

fn rust_type(kind: &str) -> String {
    match kind {
        "__u8" => "u8".into(),
        "__u16" | "__be16" => "u16".into(),
        "__u32" | "__be32" => "u32".into(),
        "__u64" => "u64".into(),
        "__s32" => "i32".into(),
        "__s64" => "i64".into(),
        other => camel(other),
    }
}

/// `state_entry` as `StateEntry`.
fn camel(name: &str) -> String {
    name.split('_')
        .map(|word| {
            let mut letters = word.chars();
            letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "// One.\n#define COUNT 3\nenum kind {\n  // First.\n  A,\n  B,\n};\n/* A pair. */\nstruct pair {\n  // Left.\n  __u32 left;\n  __be16 right[2];\n};\nstruct two {\n  struct pair pairs[COUNT];\n  __u64 sum;\n};\n";

    #[test]
    fn structs_have_the_layout_of_c() {
        let layout = read(HEADER).unwrap();
        let c = layout.to_c_assertions();
        // By the System V ABI: pair is 4 + 2 * 2, two is 3 * 8 + 8.
        assert!(c.contains("sizeof(struct pair) == 8") && c.contains("sizeof(struct two) == 32"), "{c}");
        assert!(c.contains("offsetof(struct two, sum) == 24"), "{c}");
        let rust = layout.to_rust();
        assert!(rust.contains("/// Left.\n    pub left: u32,"), "{rust}");
        assert!(rust.contains("pub pairs: [Pair; COUNT as usize],"), "{rust}");
        assert!(rust.contains("pub right: [u16; 2],"), "{rust}");
        assert!(
            rust.contains("/// First.\npub const A: u64 = 0;") && rust.contains("pub const B: u64 = 1;"),
            "{rust}"
        );
    }

    #[test]
    fn hidden_padding_and_unknown_things_are_refused() {
        for (text, word) in [
            ("struct a {\n __u8 x;\n __u32 y;\n};", "padded"),
            ("struct a {\n __u32 y;\n __u8 x;\n};", "padded at its end"),
            ("struct a {\n int y;\n};", "unknown type"),
            ("struct a {\n __u8 y[N];\n};", "unknown length"),
            ("int x;", "not understood"),
            ("#define A b", "not a number"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
