//! Removes debug information from a BPF object. The compiler makes BTF, which the kernel and libbpf read, only together with DWARF,
//! which neither reads and which is a third of the object.

use object::build::elf::{Builder, SectionData};

use crate::lines;

/// The object without its DWARF sections and their relocations. The first line of source of each function stays in `.BTF.ext`.
///
/// # Errors
/// If the bytes are no ELF object, in the words of the reader.
pub fn strip(object: &[u8]) -> Result<Vec<u8>, String> {
    let mut builder = Builder::read(object).map_err(|e| e.to_string())?;
    for section in &mut builder.sections {
        let name = section.name.as_slice();
        section.delete |= name.starts_with(b".debug_") || name.starts_with(b".rel.debug_");
        // For linkers: libbpf reads what it relocates from the place itself.
        section.delete |= name == b".rel.BTF.ext";
    }
    thin_out(&mut builder)?;
    // Symbols of sections that went: relocations of DWARF were their only users.
    builder.delete_orphans();
    // The compiler keeps the names of sections and of symbols in one table; the writer wants one for each.
    let names = builder.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = object::elf::SHT_STRTAB;
    names.data = SectionData::SectionString;
    let mut bytes = Vec::new();
    builder.write(&mut bytes).map_err(|e| e.to_string())?;
    Ok(bytes)
}

fn thin_out(builder: &mut Builder<'_>) -> Result<(), String> {
    let (mut btf, mut ext) = (None, None);
    for section in &mut builder.sections {
        match (section.name.as_slice(), &mut section.data) {
            (b".BTF", SectionData::Data(data)) => btf = Some(data.to_mut()),
            (b".BTF.ext", SectionData::Data(data)) => ext = Some(data.to_mut()),
            _ => {}
        }
    }
    match (btf, ext) {
        (Some(btf), Some(ext)) => lines::thin_out(btf, ext),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::sync::atomic::{AtomicU32, Ordering};

    use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget};

    use super::*;

    /// A map, a global, a call between programs, and a relocation of each.
    const SOURCE: &str = r#"
        #define SEC(name) __attribute__((section(name), used))
        struct { int (*type)[1]; unsigned *key; unsigned *value; int (*max_entries)[4]; } table SEC(".maps");
        int limit = 7;
        static long (*const look_up)(void *, const void *) = (void *)1;
        static __attribute__((noinline)) int above(unsigned n) { return n > (unsigned)limit; }
        SEC("tc") int prog(unsigned *skb)
        {
            unsigned key = *skb;
            unsigned *v = look_up(&table, &key);
            return v ? above(*v) : 0;
        }
        char terms[] SEC("license") = "GPL";
    "#;

    fn compiled() -> Vec<u8> {
        compiled_from(SOURCE)
    }

    fn compiled_from(text: &str) -> Vec<u8> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weir-bpf-strip-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (source, object) = (folder.join("x.c"), folder.join("x.o"));
        fs::write(&source, text).unwrap();
        let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
        let status = Command::new(clang)
            .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-w", "-fno-addrsig", "-c"])
            .arg(&source)
            .arg("-o")
            .arg(&object)
            .status()
            .unwrap();
        assert!(status.success());
        let bytes = fs::read(&object).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        bytes
    }

    /// Name and bytes of a section, and its relocations: offset, and name of the symbol or of its section.
    type Section = (String, Vec<u8>, Vec<(u64, String)>);

    /// All sections but those of debug information and of the linker.
    fn contents(bytes: &[u8]) -> Vec<Section> {
        let file = object::File::parse(bytes).unwrap();
        let target = |target: RelocationTarget| {
            let RelocationTarget::Symbol(index) = target else { panic!("{target:?}") };
            let symbol = file.symbol_by_index(index).unwrap();
            match (symbol.name().unwrap(), symbol.section_index()) {
                ("", Some(section)) => file.section_by_index(section).unwrap().name().unwrap().to_owned(),
                (name, _) => name.to_owned(),
            }
        };
        let of_code = |name: &str| {
            let of_linker = [".symtab", ".strtab", ".shstrtab", ".llvm_addrsig", ""].contains(&name);
            !name.starts_with(".debug_") && !name.starts_with(".rel") && !of_linker
        };
        let sections = file.sections().filter(|s| of_code(s.name().unwrap()));
        sections
            .map(|s| {
                let relocations = s.relocations().map(|(at, r)| (at, target(r.target()))).collect();
                (s.name().unwrap().to_owned(), s.data().unwrap().to_vec(), relocations)
            })
            .collect()
    }

    #[test]
    fn debug_information_goes_and_everything_else_stays() {
        let whole = compiled();
        let light = strip(&whole).unwrap();
        assert!(light.len() * 10 < whole.len() * 8, "{} of {} bytes", light.len(), whole.len());
        let file = object::File::parse(&*light).unwrap();
        let left: Vec<&str> = file.sections().map(|s| s.name().unwrap()).collect();
        assert!(!left.iter().any(|name| name.contains(".debug_")), "{left:?}");
        let is_btf = |(name, ..): &Section| name.starts_with(".BTF");
        let before = contents(&whole);
        for needed in [".BTF", ".BTF.ext", ".maps", "tc", "license", ".data"] {
            assert!(before.iter().any(|(name, ..)| name == needed), "the test's program lacks {needed}");
        }
        assert!(before.iter().any(|(name, _, relocations)| name == "tc" && relocations.len() >= 2));
        let without = |all: Vec<Section>| all.into_iter().filter(|one| !is_btf(one)).collect::<Vec<_>>();
        assert_eq!(without(before), without(contents(&light)));
    }

    /// The content of a section.
    fn section(bytes: &[u8], name: &str) -> Vec<u8> {
        object::File::parse(bytes).unwrap().section_by_name(name).unwrap().data().unwrap().to_vec()
    }

    #[test]
    fn types_keep_their_names_and_functions_their_first_lines() {
        let whole = compiled();
        let light = strip(&whole).unwrap();
        let of = |bytes: &[u8]| lines::tests::read(&section(bytes, ".BTF"), &section(bytes, ".BTF.ext"));
        let (before, after) = (of(&whole), of(&light));
        assert_eq!(after.names, before.names);
        for name in ["table", "limit", "prog", "above", "skb", "max_entries"] {
            assert!(after.names.contains(&name.to_owned()), "{name}: {:?}", after.names);
        }
        assert_eq!(after.functions, before.functions);
        assert_eq!(after.functions.len(), 2, "{:?}", after.functions);
        let first = |(section, at, text): &&lines::tests::Line| {
            before.functions.contains(&(section.clone(), *at)) && !text.is_empty()
        };
        assert_eq!(after.lines, before.lines.iter().filter(first).cloned().collect::<Vec<_>>());
        assert!(after.lines.len() == 2 && before.lines.len() > 4, "{:?}", before.lines);
        assert!(after.lines.iter().any(|(.., text)| text.contains("int above(")), "{:?}", after.lines);
        let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        let inside = "return v ? above";
        assert!(has(&whole, inside) && !has(&light, inside), "the text of a line inside a function");
        assert!(section(&light, ".BTF.ext").len() < section(&whole, ".BTF.ext").len());
    }

    #[test]
    fn relocations_by_type_keep_their_fields() {
        let source = r#"
            struct device { int index; long mark; } __attribute__((preserve_access_index));
            long prog(struct device *d) { return d->mark; }
        "#;
        let whole = compiled_from(source);
        let light = strip(&whole).unwrap();
        let of = |bytes: &[u8]| lines::tests::read(&section(bytes, ".BTF"), &section(bytes, ".BTF.ext"));
        assert_eq!(of(&light).relocations, of(&whole).relocations);
        assert_eq!(of(&light).relocations, [(".text".to_owned(), "0:1".to_owned())]);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        assert!(strip(b"\x7fELF and nothing more").is_err());
    }
}
